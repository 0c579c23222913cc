"""Time and bandwidth of an all_reduce over the size of the tensor: a record of `benchmarks/run.py comm`."""
import json
import sys

from program import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from comm_report import chart  # noqa: E402

RECORD = "2026-11-22-x86_64-comm.json"  # that of docs/benchmarks.md


def draw(name):
    return chart(json.loads((ROOT / "benchmarks/results" / RECORD).read_text()), name)
