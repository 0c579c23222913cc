"""Use of a group that shared memory cannot serve, by a second thread or by a forked child, is an error there; DataLoaders work."""
import multiprocessing
import os
import signal
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch.utils.data import DataLoader, Dataset

from deadline import SOON_S, scaled_s, within
from torch_ranks import RanksTest, value


class Squares(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([index, index * index]), os.getpid()


def ending_of_fork(body):
    """Runs body() in a fork, which exits with the number that it returns; returns its exit code, or minus its signal."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = body()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class ThreadsAndForksTest(RanksTest):
    def sum_is_right(self, rank, size):
        x = value((5000,), rank)
        dist.all_reduce(x)
        self.assertTrue(torch.equal(x, sum(value((5000,), peer) for peer in range(size))))

    def test_a_second_thread_is_refused(self):
        is_refused = multiprocessing.get_context("fork").Event()

        @self.on_ranks(2)
        def body(rank, size):
            group, refused = dist.group.WORLD._get_backend(torch.device("cpu")), []
            dist.barrier()
            before = group._get_sequence_number_for_group()

            def second():
                while group._get_sequence_number_for_group() == before:
                    time.sleep(0.001)
                try:
                    dist.broadcast(torch.ones(3), 0)
                except BaseException as error:
                    refused.append(error)
                is_refused.set()

            thread = threading.Thread(target=second)
            if rank == 0:
                thread.start()
            else:
                self.assertTrue(is_refused.wait(scaled_s(SOON_S)))
            self.sum_is_right(rank, size)
            if rank == 0:
                thread.join()
                self.assertIsInstance(refused[0], ValueError)
                self.assertRegex(str(refused[0]), "broadcast: a group runs one call at a time; got it while allreduce of this rank is in flight")
            self.sum_is_right(rank, size)

    def test_calls_in_a_fork_are_refused(self):
        @self.on_ranks(2)
        def body(rank, size):
            x = value((5000,), rank)
            calls = [lambda: dist.all_reduce(x), lambda: dist.all_reduce(x, async_op=True), dist.barrier, lambda: dist.send(x, 1),
                     lambda: dist.recv(x, 1), lambda: dist.broadcast_object_list([x]), lambda: symmetric.empty(3),
                     lambda: dist.group.WORLD._get_backend(torch.device("cpu")).allocate_tensor(5, dtype=x.dtype, device=x.device)]

            def in_fork():
                wrong = 0
                for call in calls:
                    try:
                        call()
                        wrong += 1
                    except ValueError as error:
                        wrong += "a fork of it" not in str(error)
                return wrong

            self.sum_is_right(rank, size)
            if rank == 0:
                self.assertEqual(ending_of_fork(in_fork), 0)
            self.sum_is_right(rank, size)

    def test_a_fork_cannot_write_to_the_memory_of_a_group(self):
        @self.on_ranks(2)
        def body(rank, size):
            x = symmetric.empty(20).fill_(rank)
            handle = symmetric.rendezvous(x, dist.group.WORLD)
            peer = handle.get_buffer(1 - rank, (20,), torch.float32)
            if rank == 0:
                self.assertEqual(ending_of_fork(lambda: x.fill_(7) is None), -signal.SIGSEGV)
                self.assertEqual(ending_of_fork(lambda: peer.fill_(7) is None), -signal.SIGSEGV)
            handle.barrier()
            self.assertEqual((x[0], peer[0]), (rank, 1 - rank))
            self.sum_is_right(rank, size)

    def test_workers_of_a_data_loader(self):
        @self.on_ranks(2)
        def body(rank, size):
            loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork")
            for _ in range(2):
                total, workers = torch.zeros(2, dtype=torch.int64), set()
                for numbers, pids in loader:  # its workers start and end between collectives
                    total += numbers.sum(0)
                    workers.update(pids.tolist())
                    self.sum_is_right(rank, size)
                self.assertEqual(len(workers - {os.getpid()}), 2)
                dist.all_reduce(total)
                self.assertEqual(total.tolist(), [size * sum(range(40)), size * sum(i * i for i in range(40))])

    def test_a_rank_without_memory_is_named(self):
        @self.on_ranks(2)
        def body(rank, size):
            dist.barrier()
            if rank == 1:
                with self.assertRaisesRegex(RuntimeError, "can't allocate memory"):
                    dist.all_reduce(torch.ones(1).expand(2**48))
                time.sleep(2 * scaled_s(SOON_S))  # rank 0 must not detect the exit instead
            else:
                expected = "rank 1 aborted: .*can't allocate memory"
                with within(self, SOON_S), self.assertRaisesRegex(dist.DistBackendError, expected):
                    dist.all_reduce(torch.ones(5000))
