"""run.py overlap: the linear layers of an MLP under TP+SP, collectives included, beside their bare products.

`shardwise bench overlap` is started anew every round, for each dtype; in it the layer with its collectives beside the
products (on), apart from them (off) and the bare products take turns. It tells medians alone: a round's ratio is that of
its medians.
"""

import json
import os
import subprocess
import sys

from comm_report import at_most, heading, line
from figures import Figure, Ratio
from machine import BUILD

DTYPES = ["bf16", "fp32"]
SECONDS = 8  # of every layer in a round
SHAPE = {"tp": 2, "rows": 2048, "hidden": 4096, "ffn": 11008}  # the documents' MLP
WAYS = ["on", "off"]
# At most, forward, to the bare product.
TARGETS = {"AllGather+GEMM": 1.02, "GEMM+ReduceScatter": 1.05}
# What --overlap auto sets side by side: whole steps, of which these are the layers' part.
STEP = [f"{layer} and backward" for layer in TARGETS]


def measured(dtype, seconds, shape):
    """One round's document."""
    flags = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    command = [str(BUILD / "shardwise"), "bench", "overlap", "--json", "--dtype", dtype, "--seconds", str(seconds), *flags]
    environment = os.environ | {"SHARDWISE_THREADS": "1"}
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout)


def figures(documents):
    """(layer, way) -> the seconds of every round."""
    found = {}
    for document in documents:
        for layer in document["layers"]:
            for way in (*WAYS, "bare"):
                figure = found.setdefault((layer["name"], way), Figure(f"{layer['name']}, {way}"))
                figure.seconds.append(layer[way]["median_us"] / 1e6)
    return found


def kept(found):
    """The way in which a step's layers take less, by the sum of their medians; on where they are level, as auto."""
    return min(WAYS, key=lambda way: step_seconds(found, way))


def step_seconds(found, way):
    return sum(found[layer, way].median() for layer in STEP)


def times(found):
    lines = ["| ms, median | overlap on | off | bare products |", "|---|---|---|---|"]
    for layer in dict.fromkeys(layer for layer, _ in found):
        cells = [f"{found[layer, way].median() * 1e3:.2f}" for way in (*WAYS, "bare")]
        lines.append(f"| {layer} | {' | '.join(cells)} |")
    return lines


def ratios(found, auto):
    """Overlap on is held to the targets, and what auto would keep."""
    lines = heading("to the bare products")
    for layer, way in found:
        if way == "bare":
            continue
        ratio = Ratio(found[layer, way], found[layer, "bare"], digits=3)
        most = TARGETS.get(layer) if way in ("on", auto) else None
        target, said = ("—", "") if most is None else (f"≤ {most}×", at_most(len(ratio.rounds), ratio.median, most))
        lines.append(line(f"{layer}, {way}", ratio, target, said))
    return lines


def told(dtype, documents):
    found = figures(documents)
    auto = kept(found)
    sums = ", ".join(f"{way} {step_seconds(found, way) * 1e3:.2f} ms" for way in WAYS)
    auto_text = f"Auto would keep overlap {auto}: both layers, forward and backward, take {sums}."
    return "\n\n".join([f"### {dtype}", "\n".join(times(found)), "\n".join(ratios(found, auto)), auto_text]) + "\n"


def overlap(rounds, seconds=SECONDS, shape=SHAPE):
    documents = {dtype: [] for dtype in DTYPES}
    for number in range(rounds):
        for dtype in DTYPES if number % 2 == 0 else reversed(DTYPES):
            documents[dtype].append(measured(dtype, seconds, shape))
        print(f"\rround {number + 1}/{rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    head = "{tp} ranks, a thread each, {rows} rows, {hidden} × {ffn}; the slowest rank's time.\n\n".format(**shape)
    return head + "\n".join(told(dtype, documents[dtype]) for dtype in DTYPES)
