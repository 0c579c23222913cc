"""Time and bandwidth of an all_reduce over the size of the tensor: the newest record of `benchmarks/run.py comm`."""
import json
import sys

from program import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from comm_report import chart  # noqa: E402


def draw(name):
    newest = max((ROOT / "benchmarks/results").glob("*-comm.json"))
    return chart(json.loads(newest.read_text()), name)
