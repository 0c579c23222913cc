"""Compares two builds of shardwise in one interleaved run: has a change cost speed?

    .venv-test/bin/python benchmarks/against.py OLD_BUILD NEW_BUILD [--rounds N]

Prints a Markdown table of the time of OLD_BUILD divided by that of NEW_BUILD (above 1: the new build is faster): training
steps, the gated MLP, decode, prefill, and all_reduce by `shardwise bench comm`. Both builds alternate in every round.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from candidates import Candidate, interleave
from figures import Figure, Ratio
from machine import ROOT, cpu_family, cpu_name

SHAPE = str(ROOT / "benchmarks" / "shapes" / "llama-3.2-1b.json")
# Program of benchmarks/, arguments, steps per round.
WORKERS = [("bench_train_step", ["sp"], 2), ("bench_train_step", ["tp"], 2), ("bench_gated_mlp", ["fp32", "sp"], 1),
           ("bench_generation", ["decode", "bf16", "precise", SHAPE], 8),
           ("bench_generation", ["prefill", "bf16", "precise", SHAPE], 1)]
BENCH_COMM = ["bench", "comm", "--tp", "2", "--sizes", "4KB,1MB,64MB", "--mode", "warm", "--seconds", "0.5", "--json"]


def worker_row(builds, program, arguments, rounds, steps):
    name = " ".join([program, *arguments]).replace(f"{ROOT}/", "")
    print(name, file=sys.stderr)
    old, new = (Candidate(f"{name} of {build}", [str(build / "benchmarks" / program), *arguments], 2, 1) for build in builds)
    interleave([old, new], rounds, steps)
    return row(f"`{name}`", old, new, 1e3, "ms")


def comm_points(build):
    printed = subprocess.run([build / "shardwise", *BENCH_COMM], check=True, text=True, stdout=subprocess.PIPE).stdout
    return json.loads(printed)["points"]


def comm_rows(builds, rounds):
    """Pairs the points of both builds by their place, since the names of calls may differ between versions."""
    runs = [[], []]
    for number in range(rounds):
        for build, run in list(zip(builds, runs))[::1 if number % 2 == 0 else -1]:
            run.append(comm_points(build))
        print(f"\rbench comm, round {number + 1}/{rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [row(f"{point['call']}, {point['bytes']:,} bytes",
                *(Figure("", [points[place]["net"]["median_us"] / 1e6 for points in run]) for run in runs), 1e6, "µs")
            for place, point in enumerate(runs[1][0])]


def row(name, old, new, unit, symbol):
    ratio = Ratio(old, new, digits=3)
    times = " | ".join(f"{statistics.median(each.seconds) * unit:.2f} {symbol}" for each in (old, new))
    return f"| {name} | {times} | {ratio.text()} | {ratio.spread()} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("builds", nargs=2, type=pathlib.Path, metavar="BUILD")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    builds = [build.resolve() for build in arguments.builds]
    rows = [worker_row(builds, program, words, arguments.rounds, steps) for program, words, steps in WORKERS]
    rows += comm_rows(builds, arguments.rounds)
    print(f"CPU: {cpu_name()} (family {cpu_family()}); {arguments.rounds} rounds\n")
    print("| | old | new | old / new | quartiles |\n|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
