"""run.py overlap: the linear layers of an MLP under TP+SP with their collectives, next to the GEMMs alone.

Every round starts `shardwise bench overlap` for each dtype, which interleaves the layer with overlapped collectives (on),
without overlap (off), and the GEMMs alone. The ratio of a round is the ratio of its medians.
"""

import json
import os
import subprocess
import sys

from comm_report import at_most, heading, line
from figures import Figure, Ratio
from machine import BUILD

DTYPES = ["bf16", "fp32"]
SECONDS = 8  # per layer and round
SHAPE = {"tp": 2, "rows": 2048, "hidden": 4096, "ffn": 11008}  # the MLP of docs/
MODES = ["on", "off"]
KEYS = {"on": "overlap_on", "off": "overlap_off", "GEMM": "gemm"}  # mode -> key in the JSON document
# Maximum ratio to the GEMM alone, forward.
TARGETS = {"AllGather+GEMM": 1.02, "GEMM+ReduceScatter": 1.05}
# The layers' part of a training step; --overlap auto compares full steps.
STEP = [f"{layer} and backward" for layer in TARGETS]


def measured(dtype, seconds, shape):
    """Runs one round and returns its document."""
    flags = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    command = [str(BUILD / "shardwise"), "bench", "overlap", "--json", "--dtype", dtype, "--seconds", str(seconds), *flags]
    environment = os.environ | {"SHARDWISE_THREADS": "1"}
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout)


def figures(documents):
    """Returns (layer, mode) -> the seconds of every round."""
    found = {}
    for document in documents:
        for layer in document["layers"]:
            for mode, key in KEYS.items():
                figure = found.setdefault((layer["name"], mode), Figure(f"{layer['name']}, {mode}"))
                figure.seconds.append(layer[key]["median_us"] / 1e6)
    return found


def auto_choice(found):
    """Returns the mode with the smaller sum of the layers' medians; like --overlap auto, on if they are equal."""
    return min(MODES, key=lambda mode: step_seconds(found, mode))


def step_seconds(found, mode):
    return sum(found[layer, mode].median() for layer in STEP)


def times(found):
    lines = ["| ms, median | overlap on | off | GEMM alone |", "|---|---|---|---|"]
    for layer in dict.fromkeys(layer for layer, _ in found):
        cells = [f"{found[layer, mode].median() * 1e3:.2f}" for mode in KEYS]
        lines.append(f"| {layer} | {' | '.join(cells)} |")
    return lines


def ratios(found, auto):
    """Compares overlap on, and the choice of auto, with the targets."""
    lines = heading("to the GEMM alone")
    for layer, mode in found:
        if mode == "GEMM":
            continue
        ratio = Ratio(found[layer, mode], found[layer, "GEMM"], digits=3)
        limit = TARGETS.get(layer) if mode in ("on", auto) else None
        target, verdict = ("—", "") if limit is None else (f"≤ {limit}×", at_most(len(ratio.rounds), ratio.median, limit))
        lines.append(line(f"{layer}, {mode}", ratio, target, verdict))
    return lines


def report(dtype, documents):
    found = figures(documents)
    auto = auto_choice(found)
    sums = ", ".join(f"{mode} {step_seconds(found, mode) * 1e3:.2f} ms" for mode in MODES)
    auto_text = f"--overlap auto would choose {auto}: both layers, forward and backward, take {sums}."
    return "\n\n".join([f"### {dtype}", "\n".join(times(found)), "\n".join(ratios(found, auto)), auto_text]) + "\n"


def overlap(rounds, seconds=SECONDS, shape=SHAPE):
    documents = {dtype: [] for dtype in DTYPES}
    for number in range(rounds):
        for dtype in DTYPES if number % 2 == 0 else reversed(DTYPES):
            documents[dtype].append(measured(dtype, seconds, shape))
        print(f"\rround {number + 1}/{rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    head = "{tp} ranks with one thread each, {rows} rows, {hidden} × {ffn}; time of the slowest rank.\n\n".format(**shape)
    return head + "\n".join(report(dtype, documents[dtype]) for dtype in DTYPES)
