"""Figures of the documents, redone with shardwise's functions: plans are arithmetic, so nothing here needs a cluster.

    PYTHONPATH=build/python .venv-test/bin/python examples/python/plan_figures.py [OUT.svg]

Editors that know `# %%` run it cell by cell, as a notebook. With OUT.svg it also draws memory over TP.
"""
import sys
from pathlib import Path

import shardwise


def table(rows):
    """Returns rows of cells as lines of aligned columns."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell!s:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


# %% Memory of a rank over TP, by mode: SP and recomputation free activations, TP alone leaves the residual stream whole.
MODEL, DEGREES, EVERYTHING_FITS = "llama-3.1-8b", (1, 2, 4, 8), 999_999  # GB
MODES = {"TP": (False, "none"), "TP+SP": (True, "none"), "TP+SP, selective": (True, "selective"), "TP, full": (False, "full")}


def peak(tp, sequence_parallel, recompute):
    """Returns a rank's peak in GB, of one sequence of 8192 tokens."""
    found = shardwise.plan(MODEL, ranks=tp, tp=tp, batch_size=1, seq_len=8192, recompute=recompute, memory_cap=EVERYTHING_FITS)
    has_mode = sequence_parallel and tp > 1  # one rank has nothing to split
    [plan, *_] = [plan for plan in found.plans if plan.degrees.sequence_parallel == has_mode]
    return plan.memory_bytes.total / 1e9


memory = {mode: [peak(tp, *how) for tp in DEGREES] for mode, how in MODES.items()}
HEADING = f"{MODEL}, GB of a rank in training, 8192 tokens"
print(HEADING)
print(table([["mode", *(f"tp {tp}" for tp in DEGREES)],
             *([mode, *(f"{peak:.1f}" for peak in peaks)] for mode, peaks in memory.items())]))


# %% The same as a picture.
def chart(series, labels, title):
    """Returns an SVG of grouped bars with a legend."""
    colors, width, height, bar = ("#0072b2", "#56b4e9", "#009e73", "#e69f00"), 640, 240, 26
    scale, step = height / max(max(values) for values in series.values()), (width - 40) / len(labels)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 110}" font-family="sans-serif" '
             f'font-size="12"><rect width="100%" height="100%" fill="white"/><text x="20" y="20">{title}</text>']
    for i, (name, values) in enumerate(series.items()):
        parts.append(f'<rect x="{20 + 155 * i}" y="{height + 86}" width="12" height="12" fill="{colors[i]}"/>'
                     f'<text x="{36 + 155 * i}" y="{height + 97}">{name}</text>')
        for j, value in enumerate(values):
            x, y = 20 + j * step + i * (bar + 6), 44 + height - value * scale
            parts.append(f'<rect x="{x:.0f}" y="{y:.1f}" width="{bar}" height="{value * scale:.1f}" fill="{colors[i]}"/>'
                         f'<text x="{x + bar / 2:.0f}" y="{y - 4:.1f}" text-anchor="middle">{value:.0f}</text>')
    parts += [f'<text x="{20 + j * step:.0f}" y="{height + 62}">{label}</text>' for j, label in enumerate(labels)]
    return "\n".join([*parts, "</svg>"])


for path in sys.argv[1:2]:
    Path(path).write_text(chart(memory, [f"tp {tp}" for tp in DEGREES], HEADING))

# %% The fastest plan of each combination of axes for 64 H100, as in docs/cli.md.
found = shardwise.plan("llama-3.1-70b", ranks=64, machine="h100", batch_size=128, seq_len=8192, cp=1)
best: dict[tuple[int, int, int], shardwise.TrainingPlan] = {}
for plan in found.plans:  # the fastest first
    best.setdefault((plan.degrees.tp, plan.degrees.pp, plan.degrees.dp), plan)
print(f"{found.model}, {found.ranks} x {found.machine}: {len(found.plans)} plans fit, {len(found.refused)} do not")
print(table([["tp", "pp", "dp", "zero", "recompute", "GB", "step ms", "tokens/s"],
             *([*axes, plan.degrees.zero, plan.degrees.recompute, f"{plan.memory_bytes.total / 1e9:.1f}",
                f"{plan.seconds.total * 1e3:.1f}", f"{plan.tokens_per_second:.0f}"] for axes, plan in [*best.items()][:4])]))

# %% The fewest devices for a model, as in docs/guide.md.
fewest: list[list[object]] = [["model", "generate in bf16", "train, 2048 tokens a sequence", "how"]]
for name in ("llama-3.1-8b", "qwen3-32b", "llama-3.1-70b", "gpt3-175b", "llama-3.1-405b"):
    generation = shardwise.plan(name, task="infer", min_gpus=True)
    training = shardwise.plan(name, seq_len=2048, min_gpus=True)
    degrees = training.plans[0].degrees
    how = f"tp {degrees.tp}, cp {degrees.cp}, pp {degrees.pp}, dp {degrees.dp}, ZeRO-{degrees.zero}, recompute {degrees.recompute}"
    fewest.append([name, generation.ranks, training.ranks, how])
print(table(fewest))

# %% What each rank holds.
held = shardwise.plan("llama-3.1-8b", shapes=True, tp=4, seq_len=8192)
rows: list[list[object]] = [["tensor", "shape", "dim", *(f"rank {rank}" for rank in range(held.tp))]]
for tensor in held.tensors:
    ranges = [", ".join(f"{begin}:{end}" for begin, end in of_rank) for of_rank in tensor.ranges] or ["all"] * held.tp
    rows.append([tensor.tensor, " x ".join(map(str, tensor.shape)), "" if tensor.dim is None else tensor.dim, *ranges])
print(table(rows))

# %% The same step on other machines. A device of p4d has half the memory of the others, and an eighth of a network port.
for name in ("h100", "a100", "p4d"):
    fastest = shardwise.plan("llama-3.1-70b", ranks=64, machine=name, batch_size=128, seq_len=8192, cp=1).plans[0]
    print(f"{name}: {fastest.seconds.total:.1f} s with tp {fastest.degrees.tp}, dp {fastest.degrees.dp}")
