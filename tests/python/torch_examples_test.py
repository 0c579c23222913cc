"""The Python examples run under the real torchrun; README shows one with two ranks."""
import subprocess
import sys
import unittest
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/python"
# plan_figures has no ranks: plan_figures_test.py runs it.
PROGRAMS = sorted(set(EXAMPLES.glob("*.py")) - {EXAMPLES / "plan_figures.py"})


class ExamplesTest(unittest.TestCase):
    def test_every_example(self):
        for example in PROGRAMS:
            with self.subTest(example=example.name):
                torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
                done = subprocess.run([*torchrun, str(example)], capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stderr[-4000:])
                self.assertIn("3 ranks", done.stdout)
