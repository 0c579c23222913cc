"""The symmetric heap as torch.distributed._symmetric_memory: buffers that all ranks access, and signals."""
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch._C._distributed_c10d import _SymmetricMemory

from deadline import SOON_S, within
from torch_ranks import RanksTest, value



class SymmetricTest(RanksTest):
    def rendezvous(self, x, group=None):
        return symmetric.rendezvous(x, group or dist.group.WORLD)

    def equal(self, x, expected):
        self.assertTrue(torch.equal(x, expected), f"{x} is not {expected}")

    def refuses(self, error, text, call):
        with self.assertRaisesRegex(error, text) as caught:
            call()
        self.assertEqual(len(str(caught.exception).splitlines()), 1)

    def test_it_is_the_cpu_backend(self):
        self.assertEqual(symmetric.get_backend("cpu"), "shardwise")
        symmetric.set_backend("shardwise")
        self.refuses(RuntimeError, "group", lambda: symmetric.empty(3))  # there is none

    def test_buffers_are_shared(self):
        @self.on_ranks(1, 2, 3)
        def body(rank, size):
            for dtype in (torch.float32, torch.bfloat16, torch.int64):
                x = symmetric.empty(20, 5, dtype=dtype, device="cpu").copy_(value((20, 5), rank, dtype))
                handle = self.rendezvous(x)
                self.assertEqual((handle.rank, handle.world_size, handle.buffer_size), (rank, size, x.nbytes))
                self.assertEqual(handle.buffer_ptrs[rank], x.data_ptr())
                for peer in range(size):
                    self.equal(handle.get_buffer(peer, (20, 5), dtype), value((20, 5), peer, dtype))
                    self.equal(handle.get_remote_tensor(peer, (5,), dtype), value((20, 5), peer, dtype)[0])
                handle.barrier()
                handle.get_buffer((rank + 1) % size, (5,), dtype, 95).fill_(rank)
                handle.barrier(channel=1)
                self.equal(x[19], torch.full((5,), (rank - 1) % size, dtype=dtype))

    def test_signals(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            x, y = symmetric.empty(4), symmetric.empty(1000)
            of_x, of_y = self.rendezvous(x), self.rendezvous(y)  # two at once, each with its own signals
            for item in range(40):
                if rank == 0:
                    for peer in range(1, size):
                        of_y.get_buffer(peer, (1000,), torch.float32).fill_(item)
                        of_y.put_signal(peer, channel=item % 4)
                        of_x.wait_signal(peer)
                else:
                    of_y.wait_signal(0, channel=item % 4)
                    self.equal(y, torch.full((1000,), float(item)))
                    of_x.put_signal(0)
            of_x.put_signal((rank + 1) % size, channel=2)
            of_x.barrier()
            pad = of_x.get_signal_pad(rank, (4, size), torch.int32)
            self.equal(pad.sum(), torch.tensor(1))
            self.equal(pad[2, (rank - 1) % size], torch.tensor(1, dtype=torch.int32))
            of_x.wait_signal((rank - 1) % size, channel=2)
            self.assertFalse(of_x.get_signal_pad(rank).view(torch.int32).any())
            self.assertFalse(of_y.get_signal_pad(rank).view(torch.int32).any())

    def test_subgroups(self):
        @self.on_ranks(3)
        def body(rank, size):
            pairs = [(0, 1), (1, 2), (0, 2)]
            groups = [dist.new_group(pair) for pair in pairs]
            x = symmetric.empty(100)  # the default group's, for all groups in it
            for pair, group in zip(pairs, groups):
                if rank not in pair:
                    continue
                peer = pair[1 - pair.index(rank)]
                own = _SymmetricMemory.empty_strided_p2p((100,), (1,), torch.float32, torch.device("cpu"),
                                                         group.group_name)
                for memory in (x, own):
                    handle = self.rendezvous(memory, group)
                    self.assertEqual((handle.rank, handle.world_size), (pair.index(rank), 2))
                    for round in range(10):
                        memory.fill_(100 * rank + round)
                        handle.barrier()
                        self.equal(handle.get_buffer(pair.index(peer), (100,), torch.float32),
                                   torch.full((100,), 100.0 * peer + round))
                        handle.barrier()
                own.fill_(rank)
                dist.all_reduce(own, group=group)
                self.equal(own, torch.full((100,), float(sum(pair))))

    def test_a_tensor_has_one_handle_per_group(self):
        @self.on_ranks(2)
        def body(rank, size):
            x = symmetric.empty(100)
            handle = self.rendezvous(x)
            if rank == 0:  # no rank is waited for
                self.assertEqual(self.rendezvous(x).buffer_ptrs, handle.buffer_ptrs)
                self.assertEqual(self.rendezvous(x[3:]).buffer_ptrs, handle.buffer_ptrs)
            handle.barrier()

    def test_memory_is_reused(self):
        @self.on_ranks(2)
        def body(rank, size):
            places = set()
            for step in range(20):
                x = symmetric.empty(100_000).fill_(step)
                places.add(x.data_ptr())
                handle = self.rendezvous(x)
                handle.barrier()
                self.equal(handle.get_buffer(1 - rank, (1,), torch.float32), torch.full((1,), float(step)))
                handle.barrier()
                del x, handle
            self.assertLessEqual(len(places), 3)

    def test_other_threads_run_while_one_waits(self):
        @self.on_ranks(2)
        def body(rank, size):
            handle = self.rendezvous(symmetric.empty(10))
            asked = Path("asked")
            if rank == 0:
                thread = threading.Timer(0.1, asked.touch)
                thread.start()
                handle.wait_signal(1)
                thread.join()
            else:
                while not asked.exists():
                    time.sleep(0.01)
                handle.put_signal(0)

    def test_reinitialization(self):
        @self.on_ranks(2)
        def body(rank, size):
            for start in range(3):
                handle = self.rendezvous(symmetric.empty(10).fill_(rank))
                handle.barrier()
                dist.destroy_process_group()
                self.refuses(ValueError, "symmetric_barrier: the group must not be used after shutdown",
                             handle.barrier)
                dist.init_process_group("shardwise", init_method=f"file://{os.getcwd()}/.store{start}", rank=rank,
                                        world_size=size)

    def test_wrong_use(self):
        @self.on_ranks(2)
        def body(rank, size):
            x = symmetric.empty(10)
            handle = self.rendezvous(x)
            gloo = dist.new_group(backend="gloo")
            other = r"symmetric memory: the backend of the group must be shardwise; got group 1 of backend gloo"
            self.refuses(ValueError, other, lambda: self.rendezvous(x, gloo))
            self.refuses(ValueError, "the storage must be allocated by symmetric memory",
                         lambda: self.rendezvous(torch.empty(10)))
            self.refuses(RuntimeError, "no group", lambda: symmetric.rendezvous(x, "no group"))
            self.refuses(RuntimeError, r"44 bytes\) exceeds the allocated size \(40",
                         lambda: handle.get_buffer(0, (10,), torch.float32, 1))
            self.refuses(ValueError, r"put_signal: channel must be in \[0, \d+\) .*; got 5000",
                         lambda: handle.put_signal(0, 5000))
            self.refuses(ValueError, r"wait_signal: rank must be in \[0, 2\); got 2", lambda: handle.wait_signal(2))
            handle.barrier()

    def test_a_rank_killed_while_another_waits_for_its_signal(self):
        for call in ("wait_signal", "barrier"):
            @self.on_ranks(3, dying=[1])
            def body(rank, size):
                handle = self.rendezvous(symmetric.empty(10))
                handle.barrier()
                if rank == 1:
                    time.sleep(0.5)
                    os.kill(os.getpid(), signal.SIGKILL)
                expected = rf"{call} #\d+: rank 1 \(pid \d+\) exited; rank {rank} waited"
                with within(self, 0.5 + SOON_S), self.assertRaisesRegex(dist.DistBackendError, expected):
                    handle.wait_signal(1) if call == "wait_signal" else handle.barrier()
                dist.destroy_process_group()

    def test_a_late_signal(self):
        @self.on_ranks(2, timeout_s=1)
        def body(rank, size):
            handle = self.rendezvous(symmetric.empty(10))
            if rank == 1:
                return time.sleep(1.5)
            expected = r"wait_signal #1: timed out waiting for rank 1 .*; rank 0 waited"
            with within(self, SOON_S), self.assertRaisesRegex(dist.DistBackendError, expected):
                handle.wait_signal(1, timeout_ms=100)
