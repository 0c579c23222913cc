"""If a rank dies, exits or runs another collective, the others soon raise an error that names it."""
import os
import signal
import time

import torch
import torch.distributed as dist

from deadline import SOON_S, within
from torch_ranks import RanksTest


class FailureTest(RanksTest):
    def fails_soon(self, call, text):
        with within(self, SOON_S), self.assertRaisesRegex(dist.DistBackendError, text):
            call()

    def test_a_killed_rank_is_named(self):
        for size, victim in [(2, 0), (2, 1), (3, 1)]:
            @self.on_ranks(size, dying=[victim])
            def body(rank, size):
                dist.barrier()
                if rank == victim:
                    os.kill(os.getpid(), signal.SIGKILL)
                x = torch.ones(5000)
                self.fails_soon(lambda: dist.all_reduce(x), rf"all_reduce #\d+: rank {victim} .* exited; rank {rank}")
                # Later calls fail too.
                self.fails_soon(lambda: dist.broadcast(x, 0), f"rank {victim} ")
                dist.destroy_process_group()

    def test_a_rank_killed_while_others_wait(self):
        @self.on_ranks(2, dying=[1])
        def body(rank, size):
            if rank == 1:
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
            with within(self, 0.5 + SOON_S), self.assertRaisesRegex(dist.DistBackendError, "rank 1 .* exited"):
                dist.barrier()

    def test_a_late_rank_is_named(self):
        @self.on_ranks(2, timeout_s=1)
        def body(rank, size):
            dist.barrier()
            if rank == 1:
                time.sleep(1.5)
                with self.assertRaisesRegex(dist.DistBackendError, "timed out waiting for rank 1 "):
                    dist.barrier()  # of which rank 0 did its part
                    dist.barrier()
            else:
                with self.assertRaisesRegex(dist.DistBackendError, "barrier.*: timed out waiting for rank 1 .*; rank 0 waited 1"):
                    dist.barrier()

    def test_different_programs_are_detected(self):
        @self.on_ranks(2)
        def body(rank, size):
            x = torch.ones(5 + rank)
            self.fails_soon(lambda: dist.all_reduce(x), r"rank 0 runs .*\[5\], rank 1 runs .*\[6\]")

    def test_a_rank_that_has_left_is_named(self):
        @self.on_ranks(2)
        def body(rank, size):
            dist.barrier()
            if rank == 1:
                dist.destroy_process_group()
            else:
                self.fails_soon(lambda: dist.all_reduce(torch.ones(3)), r"rank 1 \(pid \d+\) (left the group|exited)")
