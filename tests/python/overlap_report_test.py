"""The report of benchmarks/run.py overlap for synthetic rounds: the choice of auto, and the targets."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import overlap  # noqa: E402


def document(**us):
    """Every mode takes 100 µs, except those of `us`: (forward, with backward) of the first layer."""
    modes = {overlap.KEYS[mode]: us.get(mode, (100, 100)) for mode in overlap.KEYS}
    return {"layers": [{"name": name, **{key: {"median_us": times[i] if first else 100} for key, times in modes.items()}}
                       for first, layer in ((True, "AllGather+GEMM"), (False, "GEMM+ReduceScatter"))
                       for i, name in enumerate((layer, f"{layer} and backward"))]}


def report(rounds=5, **us):
    return overlap.report("bf16", [document(**us)] * rounds)


class Targets(unittest.TestCase):
    def test_overlap_on_has_targets_even_if_auto_would_choose_off(self):
        text = report(on=(103, 110))
        self.assertIn("| AllGather+GEMM, on | 1.030× | 1.030–1.030 | 5 | ≤ 1.02× | **missed** |", text)
        self.assertIn("| AllGather+GEMM, off | 1.000× | 1.000–1.000 | 5 | ≤ 1.02× | met |", text)
        self.assertIn("--overlap auto would choose off: both layers, forward and backward, take on 0.21 ms, off 0.20 ms.", text)

    def test_off_has_no_target_if_auto_would_choose_on(self):
        text = report(off=(103, 110))
        self.assertIn("| AllGather+GEMM, off | 1.030× | 1.030–1.030 | 5 | — |  |", text)
        self.assertIn("| GEMM+ReduceScatter, on | 1.000× | 1.000–1.000 | 5 | ≤ 1.05× | met |", text)
        self.assertIn("--overlap auto would choose on", text)

    def test_auto_chooses_on_if_they_are_equal(self):
        self.assertIn("--overlap auto would choose on", report())

    def test_backward_has_no_target(self):
        self.assertIn("| AllGather+GEMM and backward, on | 1.500× | 1.500–1.500 | 5 | — |  |", report(on=(100, 150)))

    def test_few_rounds_have_no_verdict(self):
        self.assertNotIn("met", report(rounds=4))


if __name__ == "__main__":
    unittest.main()
