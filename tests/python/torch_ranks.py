"""Ranks as processes forked from the test, joined by torch.distributed over the backend shardwise.

The test itself runs no tensor operation before it forks: threads of its own would be missing in the ranks.
"""
import ctypes
import multiprocessing
import os
import signal
import tempfile
import traceback
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

import shardwise.torch  # noqa: F401  registers the backend
from shardwise import _C
from deadline import scaled_s

LIMIT_S = scaled_s(60)


def value(shape, rank, dtype=torch.float32):
    """Returns small integers (or parities) of rank and position: they and their sums are exact in every dtype."""
    numbers = (torch.arange(torch.Size(shape).numel()) * 3 + rank * 5) % 11 + 1
    return (numbers % 2 if dtype is torch.bool else numbers).reshape(shape).to(dtype)


def write_counts():
    """Writes the counts of a coverage build: a forked rank ends by os._exit, which runs no destructor."""
    library = ctypes.CDLL(_C.__file__)
    if hasattr(library, "shardwise_write_counts"):
        library.shardwise_write_counts()


class RanksTest(unittest.TestCase):
    """A test whose bodies run on ranks; a failed assertion on any rank fails the test."""

    backend = "shardwise"

    def on_ranks(self, *sizes, dying=(), timeout_s=20):
        """Decorator: runs body(rank, size) on groups of these sizes; the ranks in `dying` are killed."""
        def run(body):
            for size in sizes:
                with self.subTest(ranks=size), tempfile.TemporaryDirectory(prefix="shardwise-ranks-") as directory:
                    self.check_ends(self.start(body, size, directory, timeout_s), dying)
        return run

    def start(self, body, size, directory, timeout_s):
        fork = multiprocessing.get_context("fork")
        ranks = []
        for rank in range(size):
            reader, writer = fork.Pipe(duplex=False)
            arguments = (body, rank, size, directory, timedelta(seconds=timeout_s), writer)
            process = fork.Process(target=self.live, args=arguments)
            process.start()
            writer.close()
            ranks.append((process, reader))
        return ranks

    def live(self, body, rank, size, directory, timeout, report):
        """Runs a rank. Reports the text of its failure, or None."""
        os.chdir(directory)
        torch.manual_seed(0)
        failure = ""
        try:
            dist.init_process_group(self.backend, init_method=f"file://{directory}/.store", rank=rank, world_size=size,
                                    timeout=timeout)
            body(rank, size)
            if dist.is_initialized():
                dist.destroy_process_group()
        except BaseException:
            failure = traceback.format_exc()
        write_counts()
        report.send(failure)

    def check_ends(self, ranks, dying):
        failures = []
        for rank, (process, reader) in enumerate(ranks):
            try:
                failure = reader.recv() if reader.poll(LIMIT_S) else f"no end within {LIMIT_S} s"
            except EOFError:  # it ended without a report
                process.join()
                failure = "" if rank in dying and process.exitcode == -signal.SIGKILL else f"exit {process.exitcode}"
            if failure:
                failures.append(f"rank {rank}: {failure}")
        for process, _ in ranks:
            process.join(timeout=0 if failures else LIMIT_S)
            if process.is_alive():
                process.kill()
                process.join()
        if failures:
            self.fail("\n".join(failures))
