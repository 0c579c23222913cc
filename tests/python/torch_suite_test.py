"""Runs PyTorch's distributed_test on shardwise. torch_suite_skips.txt lists each of its tests that does not pass here, with the
reason: those that torch skips on Gloo too, and those that expect something else of a backend. The list must be exact."""
import contextlib
import io
import unittest

import torch_suite
from torch_suite_list import EXCLUDED, FAILS_WITH, SKIPPED


class ListTest(unittest.TestCase):
    def test_torch_has_every_listed_test(self):
        self.assertEqual((SKIPPED.keys() | EXCLUDED.keys()) - set(torch_suite.names()), set())
        self.assertEqual(SKIPPED.keys() & EXCLUDED.keys(), set())

    def test_torch_skips_what_the_list_says(self):
        self.assertEqual({name: torch_suite.skip_reason(name) for name in SKIPPED}, SKIPPED)

    def test_excluded_tests_fail_for_the_listed_reason(self):
        """One that passes, or fails by something else, does not belong there."""
        for name, reason in EXCLUDED.items():
            result = unittest.TestResult()
            with self.subTest(name), contextlib.redirect_stdout(io.StringIO()):
                torch_suite.Suite(name).run(result)
                errors = "".join(text for _, text in result.failures + result.errors)
                self.assertTrue(errors, "passes")
                self.assertRegex(errors, FAILS_WITH[reason])

    def test_prints_the_list(self):
        for title, section in (("skipped by torch", SKIPPED), ("excluded", EXCLUDED)):
            for name, reason in section.items():
                print(f"{title}: {name}: {reason}")


def load_tests(loader, tests, pattern):
    listed = SKIPPED | EXCLUDED
    suite = unittest.TestSuite([loader.loadTestsFromTestCase(ListTest)])
    suite.addTests(torch_suite.Suite(name) for name in torch_suite.names() if name not in listed)
    return suite


def setUpModule():
    torch_suite.use_own_directory()
