"""What benchmarks/run.py overlap says of rounds that are made up: what auto would keep, and what is held to a target."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import overlap  # noqa: E402


def document(**us):
    """Every way takes 100 µs but where `us` has (forward, with backward) of the first layer."""
    ways = {way: us.get(way, (100, 100)) for way in ("on", "off", "bare")}
    return {"layers": [{"name": name, **{way: {"median_us": took[i] if first else 100} for way, took in ways.items()}}
                       for first, layer in ((True, "AllGather+GEMM"), (False, "GEMM+ReduceScatter"))
                       for i, name in enumerate((layer, f"{layer} and backward"))]}


def told(rounds=5, **us):
    return overlap.told("bf16", [document(**us)] * rounds)


class Targets(unittest.TestCase):
    def test_overlap_on_is_held_to_them_where_auto_would_keep_off(self):
        text = told(on=(103, 110))
        self.assertIn("| AllGather+GEMM, on | 1.030× | 1.030–1.030 | 5 | ≤ 1.02× | **missed** |", text)
        self.assertIn("| AllGather+GEMM, off | 1.000× | 1.000–1.000 | 5 | ≤ 1.02× | met |", text)
        self.assertIn("Auto would keep overlap off: both layers, forward and backward, take on 0.21 ms, off 0.20 ms.", text)

    def test_off_is_held_to_none_where_auto_would_keep_on(self):
        text = told(off=(103, 110))
        self.assertIn("| AllGather+GEMM, off | 1.030× | 1.030–1.030 | 5 | — |  |", text)
        self.assertIn("| GEMM+ReduceScatter, on | 1.000× | 1.000–1.000 | 5 | ≤ 1.05× | met |", text)
        self.assertIn("Auto would keep overlap on", text)

    def test_auto_keeps_on_where_they_are_level(self):
        self.assertIn("Auto would keep overlap on", told())

    def test_backward_has_no_target(self):
        self.assertIn("| AllGather+GEMM and backward, on | 1.500× | 1.500–1.500 | 5 | — |  |", told(on=(100, 150)))

    def test_few_rounds_have_no_verdict(self):
        self.assertNotIn("met", told(rounds=4))


if __name__ == "__main__":
    unittest.main()
