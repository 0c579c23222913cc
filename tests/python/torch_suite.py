"""PyTorch's distributed_test, which its wheel contains, on ranks of shardwise in place of Gloo's.

The suite reads the backend and the number of ranks, WORLD_SIZE, from the environment when it is imported; its decorators then
choose Gloo's tests. Ranks are forked from this process, which imports torch once: torch's own runner starts Python anew for each.
"""
import logging
import multiprocessing
import os
import sys
import tempfile
import types
import unittest

RANKS = int(os.environ.setdefault("WORLD_SIZE", "3"))
os.environ.update(BACKEND="gloo", CUDA_VISIBLE_DEVICES="", PYTORCH_PRINT_REPRO_ON_FAILURE="0")

# torch's test library needs a package that torch does not require, for this base class.
sys.modules.setdefault("expecttest", types.ModuleType("expecttest")).TestCase = unittest.TestCase

import shardwise.torch  # noqa: E402, F401  registers the backend
from torch.testing._internal import common_distributed  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

FORK = multiprocessing.get_context("fork")
SKIPS = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
# These pass on shardwise; torch skips them on Gloo.
RUN_ALTHOUGH = ("Only MPI supports all_to_all", "Only MPI supports CPU all_to_all_single")
SKIP_S = 20  # a test that is not skipped fails at once without a group


class Name(str):
    """Equals "gloo" too, because some tests ask for the backend again."""

    def __eq__(self, other):
        return str.__eq__(self, other) or other == "gloo"

    __hash__ = str.__hash__


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """Each test forks its ranks, and a skip is a failure."""

    barrier = None

    def setUp(self):
        super().setUp()
        type(self).barrier = FORK.Barrier(RANKS)  # the ranks inherit it; torch's polls files
        self._start_processes(FORK.Process)

    def _barrier(self, wait_for=RANKS, timeout=10):
        self.barrier.wait(timeout)

    def _join_processes(self, test):
        try:
            super()._join_processes(test)
        except unittest.SkipTest as skip:
            self.fail(f"torch skips this test: {skip}")


def skip_reason(name):
    """Returns torch's reason for skipping a test here, or None. Runs it on one rank without a group if need be."""
    method = getattr(Suite, name)
    if getattr(method, "__unittest_skip__", False):
        return method.__unittest_skip_why__
    rank = FORK.Process(target=_run_alone, args=(name,))
    rank.start()
    rank.join(SKIP_S)
    if rank.is_alive():
        rank.kill()
        rank.join()
    return SKIPS.get(rank.exitcode)


def _run_alone(name):
    sys.stderr = open(os.devnull, "w")
    case = Suite(name)
    case.rank = 0
    getattr(case, name)()


def names():
    return unittest.TestLoader().getTestCaseNames(Suite)


def use_own_directory():
    """Gives this process a temporary directory until the module's tests end, for torch leaves files."""
    directory = tempfile.TemporaryDirectory(prefix="shardwise-torch-suite-")
    unittest.addModuleCleanup(directory.cleanup)
    unittest.addModuleCleanup(setattr, tempfile, "tempdir", tempfile.tempdir)
    tempfile.tempdir = directory.name
    os.environ["TMPDIR"] = directory.name


def _prepare():
    distributed_test.BACKEND = Name("shardwise")
    os.environ["BACKEND"] = "mpi"  # lets tests of subgroups run on fewer than 8 ranks; the import has read it
    logging.getLogger(common_distributed.__name__).setLevel(logging.CRITICAL)  # failures are reported once, by unittest
    for name in names():
        method = getattr(Suite, name)
        if getattr(method, "__unittest_skip_why__", None) in RUN_ALTHOUGH:
            method.__unittest_skip__ = False


_prepare()
