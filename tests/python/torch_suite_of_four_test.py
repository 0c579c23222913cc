"""Runs those tests of PyTorch's distributed_test on shardwise that need 4 ranks. torch_suite_test.py runs the others on 3."""
import os
import unittest

os.environ["WORLD_SIZE"] = "4"

import torch_suite  # noqa: E402
from torch_suite_list import ON_FOUR, SKIPPED_ON_FOUR  # noqa: E402


class ListTest(unittest.TestCase):
    def test_torch_skips_what_the_list_says(self):
        skipped = {name: torch_suite.skip_reason(name) for name in SKIPPED_ON_FOUR}
        self.assertEqual(skipped, SKIPPED_ON_FOUR)
        self.assertLess(SKIPPED_ON_FOUR.keys(), ON_FOUR.keys())


def load_tests(loader, tests, pattern):
    suite = unittest.TestSuite([loader.loadTestsFromTestCase(ListTest)])
    suite.addTests(torch_suite.Suite(name) for name in ON_FOUR if name not in SKIPPED_ON_FOUR)
    return suite


def setUpModule():
    torch_suite.use_own_directory()
