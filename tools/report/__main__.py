"""python3 tools/report FIGURES [OTHER] >PAGE.html

Makes one self-contained page from the output of `shardwise train --report FIGURES`: loss, step time, memory and the
shapes of the shards. OTHER, the first steps of the same job on one rank, adds a comparison of the losses. Needs only
Python and no network.
"""
import json
import re
import sys
from html import escape
from itertools import groupby
from pathlib import Path

from charts import bars, curves, legend

WARM_UP = 3  # steps whose times are omitted, because they include page faults
CLASSES = [("weights", "c1"), ("main gradients", "c2"), ("optimizer", "c3"), ("activations", "c4"),
           ("shared memory", "c5")]


def mean(values):
    return sum(values) / len(values)


def smoothed(points, weight=0.9):
    """Running mean with Adam's bias correction."""
    out, average, norm = [], 0.0, 0.0
    for x, y in points:
        average, norm = weight * average + (1 - weight) * y, weight * norm + 1 - weight
        out.append((x, average / norm))
    return out


def loss_chart(steps):
    train = [(s["step"], s["loss"]) for s in steps]
    series = [("faint", train, ["line"]), ("c1", smoothed(train), ["line"])]
    names = [("c1", "training (running mean; each step in gray)")]
    validation = [(s["step"], s["val_loss"]) for s in steps if "val_loss" in s]
    if validation:
        series.append(("c3", validation, ["line", "dots"]))
        names.append(("c3", "validation"))
    return curves(series, "step", "loss, nats per token") + legend(names)


def sent_table(ranks):
    columns = [("sent", "comm_bytes"), ("planned", "expected_comm_bytes"), ("copied", "copied_bytes")]
    columns = [(name, field) for name, field in columns if field in ranks[0]]  # over MPI copies are not counted
    head = "".join(f"<th>{name}</th>" for name, _ in columns)
    rows = "".join(f"<tr><td class=rank>rank {i}</td>{''.join(f'<td>{rank[field]:,}</td>' for _, field in columns)}</tr>"
                   for i, rank in enumerate(ranks))
    return f"<table><thead><tr><th class=rank>bytes per step</th>{head}</tr></thead>{rows}</table>"


def time_chart(steps):
    used = steps[WARM_UP:] if len(steps) > WARM_UP else steps
    ranks = range(len(used[0]["comm_ms"]))
    average = {field: [mean([s[field][rank] for s in used]) for rank in ranks]
               for field in ("step_ms", "comm_ms", "wait_ms") if field in used[0]}
    rows = []
    for rank in ranks:
        step, comm = average["step_ms"][rank], average["comm_ms"][rank]
        parts = [("c1", step - comm), ("c3", comm)]
        if "wait_ms" in average:
            wait = average["wait_ms"][rank]
            parts[1:] = [("c3", comm - wait), ("c4", wait)]
        rows.append((f"rank {rank}", parts))
    names = [("c1", "computing"), ("c3", "communicating, waiting included")]  # over MPI waiting is not counted
    if "wait_ms" in average:
        names[1:] = [("c3", "communicating: copies and sums"), ("c4", "waiting for a peer")]
    return bars(rows, "ms") + legend(names)


def memory_chart(ranks):
    classes = [(key, css) for key, css in CLASSES if key in ranks[0]["memory"]]
    rows = []
    for i, rank in enumerate(ranks):
        for name, field in (("measured", "memory"), ("planned", "expected_memory")):
            if field not in rank:  # split batches and ranks over MPI have no planned memory
                continue
            rows.append((f"rank {i}, {name}", [(css, rank[field][key] / 1e6) for key, css in classes]))
    return bars(rows, "MB") + legend([(css, name) for name, css in classes])


def pattern(name):
    return re.sub(r"(?<=layers\.)\d+", "*", name)


def shape(sizes):
    return " × ".join(map(str, sizes))


def shape_table(parameters, ranks):
    """Layers with equal shards share a row."""
    alike = sorted(parameters, key=lambda p: (pattern(p["name"]), p["shape"], p["rank_shapes"]))
    order = {pattern(p["name"]): i for i, p in reversed(list(enumerate(parameters)))}
    rows = [(key, list(same)) for key, same in groupby(alike, lambda p: (pattern(p["name"]), p["shape"], p["rank_shapes"]))]
    rows.sort(key=lambda row: order[row[0][0]])
    body = []
    for (name, full, shards), same in rows:
        times = f' <span class="times">{len(same)} layers</span>' if len(same) > 1 else ""
        cells = "".join(f'<td class="{"shard" if s != full else "full"}">{shape(s)}</td>' for s in shards)
        body.append(f"<tr><td class=name>{escape(name)}{times}</td><td>{shape(full)}</td>{cells}</tr>")
    head = "".join(f"<th>rank {i}</th>" for i in range(ranks))
    return f'<table><thead><tr><th class=name>parameter</th><th>full</th>{head}</tr></thead>{"".join(body)}</table>'


def comparison(steps, others):
    split, single = ([(s["step"], s["loss"]) for s in some[: len(others)]] for some in (steps, others))
    differences = [abs(a - b) for (_, a), (_, b) in zip(split, single)]
    chart = curves([("c1", split, ["line"]), ("c4", single, ["dots"])], "step", "loss, nats per token")
    note = f"The largest of {len(differences)} differences is {max(differences):.1e}; {differences.count(0)} are zero."
    return chart + legend([("c1", "this run"), ("c4", "one rank")]) + f"<p class=note>{note}</p>"


def figure(title, note, chart, wide=False):
    return f'<section class="{"wide" if wide else ""}"><h2>{title}</h2><p class=note>{note}</p>{chart}</section>'


def tiles(figures):
    steps, rank = figures["steps"], figures["ranks"][0]
    step_ms = mean([s["step_ms"][0] for s in (steps[WARM_UP:] or steps)])
    validation = [s["val_loss"] for s in steps if "val_loss" in s]
    values = [(f'{figures["run"]["parameters"] / 1e6:.2f} M', "parameters"),
              (f'{steps[-1]["loss"]:.3f}', f'loss after {steps[-1]["step"]} steps')]
    values += [(f"{validation[-1]:.3f}", "on validation text")] if validation else []
    values += [(f'{figures["run"]["tokens_per_step"] / step_ms * 1e3:,.0f}', "tokens per second"),
               (f'{sum(rank["memory"].values()) / 1e6:.1f} MB', "peak memory of rank 0"),
               (f'{rank["comm_bytes"] / 1e6:.1f} MB', "sent by rank 0 per step")]
    return "".join(f"<div><b>{value}</b>{name}</div>" for value, name in values)


def page(figures, others):
    run, parts = figures["run"], []
    parts.append(figure("Loss", "Training and validation loss by step.", loss_chart(figures["steps"])))
    if others:
        parts.append(figure("Comparison with one rank", "The first steps again with TP=1: losses differ by rounding only.",
                            comparison(figures["steps"], others["steps"])))
    parts.append(figure("Step time", f"Mean over the steps after the first {WARM_UP}, by rank.",
                        time_chart(figures["steps"]) + sent_table(figures["ranks"])))
    parts.append(figure("Peak memory", "Measured by the allocators, next to the planned memory.",
                        memory_chart(figures["ranks"])))
    parts.append(figure("Shards of every parameter", "Shards of split parameters are in color.",
                        shape_table(figures["parameters"], len(figures["ranks"])), wide=True))
    mode = "TP with sequence parallelism" if run["sequence_parallel"] else "TP"
    title = f'{run["tp"]} ranks, {mode}' if run["tp"] > 1 else "one rank"
    template = (Path(__file__).parent / "page.html").read_text()
    fields = {"title": title, "description": escape(run["description"]), "tiles": tiles(figures),
              "figures": "".join(parts)}
    return re.sub(r"\{\{(\w+)\}\}", lambda field: fields[field[1]], template)


def main(paths):
    if not 1 <= len(paths) <= 2:
        sys.exit("report: needs one or two files written by `shardwise train --report`")
    loaded = [json.loads(Path(path).read_text()) for path in paths]
    print(page(loaded[0], loaded[1] if len(loaded) > 1 else None))


if __name__ == "__main__":
    main(sys.argv[1:])
