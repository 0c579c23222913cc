"""The rates in benchmarks/probes.py, for a document with known times."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import probes  # noqa: E402


class Rates(unittest.TestCase):
    def test_are_those_of_all_ranks_together(self):
        weights = [{"bytes": 4_000_000, "read": {"median_us": 200}, "arithmetic_operations": 1_000_000,
                    "arithmetic": {"median_us": 10}, "instruction": "fma"},
                   {"bytes": 2_000_000, "read": {"median_us": 1}, "arithmetic_operations": 3_000_000,
                    "arithmetic": {"median_us": 10}, "instruction": "vdpbf16ps"}]
        self.assertEqual(probes.of_document({"tp": 2, "weights": weights}),
                         "reading 40.0 GB/s; 200 GFLOP/s by fma; 600 GFLOP/s by vdpbf16ps")


if __name__ == "__main__":
    unittest.main()
