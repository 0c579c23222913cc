"""Measured points of `shardwise profile --json`, with the model's curves through them.

Without --from they are drawn from the runs recorded in docs/figures/data.
"""
import sys

from axis import decades, doubling, from_zero
from page import SERIES
from panel import Chart, Panel, Style
from program import loaded, recorded

MARKERS = ["circle", "square", "diamond", "triangle"]
MODEL = ", model"
FARTHEST = 8  # ranks up to which the model's curve goes on
KINDS = {"profile_products": ["profile products"], "profile_ratio": ["profile mlp", "profile block"],
         "profile_degree": ["profile mlp", "profile block", "profile step"]}


def run_of(name, path):
    """Returns the document of a measured run: of `path`, or the recorded one."""
    found = loaded(path) if path else recorded(f"{name}.json")
    command = found.get("command") if isinstance(found, dict) else None
    if command not in KINDS[name] or not found.get("measured"):
        sys.exit(f"figures: --from of {name} must be the JSON of a measured {' or '.join(KINDS[name])}; got {command}")
    return found


def styles_of(curves, first=0):
    """A color for each series, from the color `first` on; the model's curves are dashed, and measured points are not joined if there is such a curve."""
    bases = list(dict.fromkeys(series.removesuffix(MODEL) for series in curves))
    found = {}
    for series in curves:
        i = first + bases.index(series.removesuffix(MODEL))
        is_model = series.endswith(MODEL)
        found[series] = Style(i % SERIES, "5 3" if is_model else "", "none" if is_model else MARKERS[i % len(MARKERS)],
                              is_joined=is_model or series + MODEL not in curves)
    return found


def add(curves, series, x, y):
    if y is not None:
        curves.setdefault(series, []).append((x, y))


def values(curves):
    return [y for points in curves.values() for _, y in points]


def about(found):
    """The line below a figure: what was run where."""
    batch = f", {found['batch_size']} x {found['seq_len']} tokens" if "seq_len" in found else ""
    passes = {True: ", forward and backward", False: ", forward"}.get(found.get("backward"), "")
    model = f" of {found['model']}" if "model" in found else ""
    return [f"Measured: shardwise {found['command']}{model} on {found['cpu']}, {found['dtype']}{batch}{passes}."]


def hosts_note(found):
    network = found.get("emulated_hosts")
    if not network:
        return []
    delay, rate = network["delay_seconds"], network["bits_per_second"]
    limits = ([f"{delay * 1e6:g} µs"] if delay else []) + ([f"{rate / 1e9:g} Gbit/s"] if rate else [])
    return [f"{network['hosts']} hosts of {network['ranks_per_host']} ranks are emulated on this machine"
            f"{', with ' + ' and '.join(limits) + ' between them' if limits else ''}."]


def sharing_note(rows):
    shared = sorted({row["ranks"] for row in rows if row.get("oversubscribed", row.get("measurement", {}).get("oversubscribed"))})
    return [f"With {', '.join(map(str, shared))} ranks several share a core."] if shared else []


def draw_ratio(name, path=None):
    """Communication over computation, against the hidden size and against ranks."""
    found = run_of(name, path)
    rows = [row for row in found["rows"] if row["ranks"] > 1]
    if not rows:
        sys.exit(f"figures: --from of {name} must have a row of several ranks; got none")
    by_hidden, by_ranks = {}, {}
    for row in rows:
        for curves, series, x in ((by_hidden, f"{row['ranks']} ranks", row["hidden"]), (by_ranks, f"h {row['hidden']}", row["ranks"])):
            add(curves, series, x, row["ratio"])
    for row in rows:
        add(by_hidden, f"{row['ranks']} ranks{MODEL}", row["hidden"], row.get("model_ratio"))
    by_ranks |= model_over_ranks(rows)
    y = decades(values(by_hidden) + values(by_ranks))
    ranks = sorted({x for points in by_ranks.values() for x, _ in points})
    panels = [Panel("over the hidden size", "hidden size", "time of collectives / of computation", doubling(sorted({row["hidden"] for row in rows})), y, by_hidden),
              Panel("over ranks", "ranks", "time of collectives / of computation", doubling(ranks), y, by_ranks)]
    of_hidden = styles_of(by_hidden)
    words = "; ".join(f"{row['ranks']} ranks, hidden size {row['hidden']}: {row['ratio']:.3g}" for row in rows)
    return Chart(name, "Communication over computation, measured", f"Points are measured, dashed curves are those of the fitted model. {words}.",
                 of_hidden | styles_of(by_ranks, first=len({row["ranks"] for row in rows})), [panels], about(found) + model_note(found) + sharing_note(rows))


def model_over_ranks(rows):
    """The model's ratio grows with R - 1: a rank sends in proportion to (R - 1)/R, and computes to 1/R."""
    curves = {}
    for row in rows:
        series = f"h {row['hidden']}{MODEL}"
        if "model_ratio" not in row or row.get("crosses_hosts") or series in curves:
            continue
        ranks = sorted({2 ** i for i in range(1, FARTHEST.bit_length())} | {row["ranks"]})
        curves[series] = [(r, row["model_ratio"] * (r - 1) / (row["ranks"] - 1)) for r in ranks]
    return curves


def model_note(found):
    fit = found.get("fit")
    if not fit:
        return ["There is no fitted model: no row has several ranks that share memory, each on a core of its own."]
    return [f"Model: {fit['flop_per_second'] / 1e9:.1f} GFLOP/s and {fit['bytes_per_second'] / 1e9:.2f} GB/s per rank, fitted to all points."]


def draw_degree(name, path=None):
    """Throughput of a rank against the degree of TP."""
    found = run_of(name, path)
    rows, unit = found["rows"], "tokens" if found["command"] == "profile step" else "rows"
    curves = {}
    for key, suffix in ((f"{unit}_per_second_per_rank", ""), (f"model_{unit}_per_second_per_rank", MODEL)):
        for row in rows:
            add(curves, (f"h {row['hidden']}" if "hidden" in row else found["model"]) + suffix, row["ranks"], row.get(key))
    curves = {series: points for series, points in curves.items() if not series.endswith(MODEL) or len(points) > 1}
    network = found.get("emulated_hosts")
    marks = {network["ranks_per_host"]: "one host"} if network else {}
    panel = Panel("throughput of a rank", "ranks", f"{unit} per second and rank", doubling(sorted({row["ranks"] for row in rows})),
                  from_zero(values(curves)), curves, marks, width=680)
    words = "; ".join(f"{series}: " + ", ".join(f"{y:.0f} on {x}" for x, y in points) for series, points in curves.items())
    return Chart(name, "Throughput of a rank over the degree of tensor parallelism, measured", f"In {unit} per second and rank. {words}.",
                 styles_of(curves), [[panel]], about(found) + hosts_note(found) + sharing_note(rows))


def draw_products(name, path=None):
    """Products over size and over rows, below their roofs."""
    found = run_of(name, path)
    panels, styles = [], {}
    for kind, size, title in (("squares", "n", "square matrices"), ("rows", "rows", f"rows x {found['hidden']} x {4 * found['hidden']}")):
        curves = {}
        for team in found["teams"]:
            series = f"{team['ranks']} rank" + ("s at once" if team["ranks"] > 1 else "")
            for one in team[kind]:
                add(curves, series, one[size], one["flop_per_second"] / 1e9)
                add(curves, series + ", roof", one[size], one["roof_flop_per_second"] / 1e9)
        for i, series in enumerate(curves):
            styles[series] = Style(i // 2, "5 3" if i % 2 else "", "none" if i % 2 else MARKERS[i // 2 % len(MARKERS)])
        sizes = [one[size] for one in found["teams"][0][kind]]
        panels.append(Panel(title, size, "GFLOP/s of a rank", doubling(sizes), from_zero(values(curves)), curves))
    words = "; ".join(f"{team['ranks']} ranks: {one['n']} x {one['n']} {one['flop_per_second'] / 1e9:.0f} GFLOP/s"
                      for team in found["teams"] for one in team["squares"][-1:])
    notes = about(found) + ["Roof: arithmetic in registers, or reading the weight from memory once, whichever is slower."]
    return Chart(name, "Matrix products over their size, measured", f"Dashed: the roof. {words}.", styles, [panels], notes)
