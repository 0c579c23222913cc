"""The contract of every c10d backend, as PyTorch's tests of Gloo define it: Work handles, futures, coalescing, subgroups of
groups, timeouts, errors."""
import copy
import os
import signal
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from deadline import SOON_S, scaled_s, within
from torch_ranks import RanksTest, value

CPU = torch.device("cpu")
COMM_ERROR = 2  # of c10d's WorkResult


def sum_of(shape, size):
    return sum(value(shape, rank) for rank in range(size))


class ContractTest(RanksTest):
    def equal(self, x, expected):
        self.assertTrue(torch.equal(x, expected), f"{x} is not {expected}")

    def within(self, seconds, error, text, call):
        with within(self, seconds), self.assertRaisesRegex(error, text):
            call()


class HandlesTest(ContractTest):
    def test_every_asynchronous_call_has_a_handle(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            x, whole = value((size, 3), rank), torch.zeros(size, 3)
            pieces = list(torch.zeros(size, 3).unbind())
            calls = {
                "broadcast": lambda: dist.broadcast(x, 0, async_op=True),
                "all_reduce": lambda: dist.all_reduce(x, async_op=True),
                "reduce": lambda: dist.reduce(x, 0, async_op=True),
                "all_gather": lambda: dist.all_gather(pieces, x[0], async_op=True),
                "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, x[0], async_op=True),
                "reduce_scatter": lambda: dist.reduce_scatter(pieces[0], list(x.unbind()), async_op=True),
                "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(pieces[0], x, async_op=True),
                "gather": lambda: dist.gather(x[0], pieces if rank == 0 else None, 0, async_op=True),
                "scatter": lambda: dist.scatter(x[0], pieces if rank == 0 else None, 0, async_op=True),
                "all_to_all": lambda: dist.all_to_all(pieces, list(x.unbind()), async_op=True),
                "all_to_all_single": lambda: dist.all_to_all_single(whole, x, async_op=True),
                "barrier": lambda: dist.barrier(async_op=True),
            }
            for name, call in calls.items():
                work = call()
                self.assertTrue(work.wait() and work.is_completed(), name)
                work.get_future().wait()
                self.assertEqual(work.get_future_result().wait(), 0, name)

    def test_futures_chain(self):
        @self.on_ranks(2)
        def body(rank, size):
            future = dist.all_reduce(value((5,), rank), async_op=True).get_future()
            calls = []
            future.add_done_callback(lambda done: calls.append(done.value()[0]))
            chained = future.then(lambda done: done.value()[0] * 2).then(lambda done: done.value() + 1)
            self.equal(chained.wait(), 2 * sum_of((5,), size) + 1)
            self.equal(calls[0], sum_of((5,), size))

            def fails(done):
                raise ValueError("of the callback")

            with self.assertRaisesRegex(RuntimeError, "of the callback"):
                future.then(fails).then(lambda done: done.value()).wait()
            both = torch.futures.collect_all([future, dist.barrier(async_op=True).get_future()]).wait()
            self.equal(both[0].value()[0], sum_of((5,), size))

    def test_the_handle_raises_the_failure(self):
        @self.on_ranks(2, dying=[1])
        def body(rank, size):
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            calls = []
            work = dist.all_reduce(torch.ones(5000), async_op=True)
            self.assertTrue(work.is_completed())
            future = work.get_future()
            chained = future.then(lambda done: calls.append("called") or done.value())
            for call in (work.wait, future.wait, future.value):
                self.within(SOON_S, dist.DistBackendError, "all_reduce .*rank 1 .* exited", call)
            self.within(SOON_S, RuntimeError, "DistBackendError: all_reduce .*rank 1 .* exited", chained.wait)
            self.assertEqual(calls, ["called"])
            self.assertEqual(work.get_future_result().wait(), COMM_ERROR)
            for call in (lambda: dist.all_reduce(torch.ones(1)), dist.irecv(torch.ones(1), 1).wait,
                         dist.isend(torch.ones(1), 1).wait):
                self.within(SOON_S, dist.DistBackendError, "rank 1 ", call)
            dist.destroy_process_group()

    def test_functional_collectives_fail_where_they_are_waited_for(self):
        import torch.distributed._functional_collectives as functional

        @self.on_ranks(2, dying=[1])
        def body(rank, size):
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            x = functional.all_reduce(torch.ones(5), "sum", dist.group.WORLD)
            self.within(SOON_S, dist.DistBackendError, "rank 1 ", lambda: x + 0)

    def test_the_call_raises_for_wrong_arguments(self):
        @self.on_ranks(2)
        def body(rank, size):
            world, x = dist.group.WORLD, torch.ones(3)
            with warnings.catch_warnings(action="ignore"):
                sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,))
            doubled = dist._make_nccl_premul_sum(2.0)
            for text, call in [
                    ("allreduce: accepts dense tensors on the CPU; got a Sparse tensor",
                     lambda: dist.all_reduce(sparse, async_op=True)),
                    ("supports SUM, AVG, .*; got PREMUL_SUM", lambda: dist.all_reduce(x, doubled, async_op=True)),
                    ("allreduce: accepts one tensor; got 2", lambda: world.allreduce([x, x])),
                    (r"broadcast: rank must be in \[0, 2\); got 7", lambda: world.broadcast(x, 7)),
                    (r"broadcast: rank must be in \[0, 2\); got -1", lambda: world.broadcast(x, -1)),
                    (r"reduce: rank must be in \[0, 2\); got 2", lambda: world.reduce(x, 2)),
                    (r"gather: rank must be in \[0, 2\); got 2",
                     lambda: world.gather([[x, x]], [x], self.rooted(dist.GatherOptions))),
                    (r"scatter: rank must be in \[0, 2\); got 2",
                     lambda: world.scatter([x], [[x, x]], self.rooted(dist.ScatterOptions))),
            ]:
                with self.assertRaisesRegex(ValueError, text):
                    call()
            dist.barrier()  # the group still works
            # Sizes and lists may be wrong on one rank alone: these errors abort the group.
            for text, call in [
                    (r"input and its own part of the output must have the same shape; got \[3\] and \[2\]",
                     lambda: dist.all_gather([x[:2], x[:2]], x)),
                    (r"the larger tensor must hold one piece per rank, of its dtype; got 3 Float and 3 Float elements",
                     lambda: dist.all_gather_into_tensor(x, x)),
                    ("the number of outputs must be that of inputs; got 2 and 1",
                     lambda: world.allgather_into_tensor_coalesced([x, x], [x])),
            ]:
                with self.assertRaisesRegex(ValueError, text):
                    call()

    @staticmethod
    def rooted(options):
        result = options()
        result.rootRank = 2
        return result

    def test_ddp_hooks(self):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        def own(state, bucket):
            work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        @self.on_ranks(2)
        def body(rank, size):
            reference, x = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(4 * size, 6)
            reference(x).square().mean().backward()
            power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
            for state, hook, error in [(None, own, 1e-6), (None, default_hooks.allreduce_hook, 1e-6),
                                       (None, default_hooks.fp16_compress_hook, 1e-3),
                                       (power, powerSGD_hook.powerSGD_hook, 1e-6)]:
                model = copy.deepcopy(reference)
                model.zero_grad()
                model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0001)
                model.register_comm_hook(state, hook)
                model(x.chunk(size)[rank]).square().mean().backward()
                for ours, theirs in zip(model.parameters(), reference.parameters()):
                    torch.testing.assert_close(ours.grad, theirs.grad, rtol=error, atol=error)


class CoalescingTest(ContractTest):
    def test_collectives_that_torch_coalesces(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            shapes, world = [(1,), (3, 5), (70, 80)], (size, 3)
            sums, gathered = [value(shape, rank) for shape in shapes], [torch.zeros(size, *shape) for shape in shapes]
            scattered = [torch.zeros(3), torch.zeros(3)]
            with dist._coalescing_manager(async_ops=True) as manager:
                for x in sums:
                    dist.all_reduce(x)
            manager.wait()
            with dist._coalescing_manager():
                for x, shape in zip(gathered, shapes):
                    dist.all_gather_into_tensor(x, value(shape, rank))
            with dist._coalescing_manager():
                for factor, x in enumerate(scattered):
                    dist.reduce_scatter_tensor(x, (factor + 1) * value(world, rank))
            for x, whole, shape in zip(sums, gathered, shapes):
                self.equal(x, sum_of(shape, size))
                self.equal(whole, torch.stack([value(shape, peer) for peer in range(size)]))
            for factor, x in enumerate(scattered):
                self.equal(x, (factor + 1) * sum_of(world, size)[rank])

    def test_lists_of_lists(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            shapes = [(2,), (3, 4)]
            outputs = [[torch.zeros(shape) for shape in shapes] for _ in range(size)]
            with warnings.catch_warnings(action="ignore"):
                dist.all_gather_coalesced(outputs, [value(shape, rank) for shape in shapes])
            for peer, own in enumerate(outputs):
                for x, shape in zip(own, shapes):
                    self.equal(x, value(shape, peer))

    def test_a_block_of_any_calls(self):
        @self.on_ranks(2)
        def body(rank, size):
            x, received, other = value((5,), rank), torch.zeros(70), 1 - rank
            with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
                dist.irecv(received, other)
                dist.broadcast(x, 1, async_op=True)
                dist.isend(value((70,), rank), other)
            manager.wait()
            self.equal(x, value((5,), 1))
            self.equal(received, value((70,), other))
            work = manager.works[0]
            self.assertEqual(len(work.get_future().wait()), 3)
            dist.barrier()  # of the next block
            with self.assertRaisesRegex(ValueError, "start_coalescing must come first"):
                dist.group.WORLD._end_coalescing(CPU)

    def test_batched_messages(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            self.assertTrue(dist.group.WORLD._get_backend(CPU).supports_coalescing)
            peers = [peer for peer in range(size) if peer != rank]
            received = {peer: torch.zeros(90, 80) for peer in peers}
            calls = [dist.P2POp(dist.irecv, received[peer], peer, tag=rank) for peer in peers]
            calls += [dist.P2POp(dist.isend, value((90, 80), rank), peer, tag=peer) for peer in peers]
            for work in dist.batch_isend_irecv(calls):
                work.wait()
            for peer in peers:
                self.equal(received[peer], value((90, 80), peer))

    def test_a_block_fails_as_a_whole(self):
        @self.on_ranks(2, dying=[1])
        def body(rank, size):
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.zeros(3), 1)])
            self.within(SOON_S, dist.DistBackendError, "recv .*rank 1 .* exited", works[0].wait)
            self.within(SOON_S, dist.DistBackendError, "rank 1 ", lambda: works[0].get_future().wait())


class GroupsOfGroupsTest(ContractTest):
    def sum_of_ranks(self, group, rank):
        x = torch.tensor([float(rank)])
        group.allreduce([x]).wait()
        return x.item()

    def test_split(self):
        """dist.split_group needs an accelerator that the default group is bound to."""
        @self.on_ranks(3)
        def body(rank, size):
            world = dist.group.WORLD
            self.assertTrue(world._get_backend(CPU).supports_splitting)
            pair = world.split_group([0, 2] if rank != 1 else [1], timeout=timedelta(seconds=7), group_desc="a pair")
            self.assertEqual((pair.size(), pair.rank(), pair.group_desc), (1 if rank == 1 else 2, rank // 2, "a pair"))
            self.assertEqual(pair._get_backend(CPU).name(), "shardwise")
            self.assertEqual(self.sum_of_ranks(pair, rank), 1 if rank == 1 else 2)
            again = world.split_group([0, 2], group_name="of some")
            self.assertEqual(again is None, rank == 1)
            if again:
                self.assertEqual(again.group_name, "of some")
                self.assertEqual(self.sum_of_ranks(again, rank), 2)
                alone = again.split_group([again.rank()])
                self.assertEqual(self.sum_of_ranks(alone, rank), rank)
            self.assertEqual(self.sum_of_ranks(world, rank), 3)
            with self.assertRaisesRegex(RuntimeError, "No device associated with the default pg"):
                dist.split_group(split_ranks=[[0, 1, 2]])

    def test_merge(self):
        @self.on_ranks(3)
        def body(rank, size):
            world = dist.group.WORLD
            part = world.split_group([0, 1] if rank < 2 else [2], group_name="low" if rank < 2 else "high")
            whole = part.merge_remote_group(world.get_group_store(), 3, timedelta(seconds=20), "all")
            self.assertEqual(whole.size(), 3)
            self.assertEqual(self.sum_of_ranks(whole, rank), 3)

    def test_names(self):
        @self.on_ranks(2)
        def body(rank, size):
            self.assertEqual((dist.get_backend_config(), dist.get_backend()), ("cpu:shardwise", "shardwise"))
            self.assertTrue(dist.is_backend_available("shardwise"))

    def test_debug_detail(self):
        """TORCH_DISTRIBUTED_DEBUG=DETAIL wraps every backend in one that first compares the ranks' calls."""
        @self.on_ranks(2)
        def body(rank, size):
            dist.set_debug_level(dist.DebugLevel.DETAIL)
            group, x = dist.new_group(), value((5,), rank)
            dist.all_reduce(x, group=group)
            self.equal(x, sum_of((5,), size))
            with self.assertRaisesRegex(RuntimeError, "(?s)mismatch"):
                dist.all_reduce(torch.ones(3 + rank), group=group)

    def test_a_forked_process_does_not_use_the_group(self):
        @self.on_ranks(2)
        def body(rank, size):
            dist.barrier()
            child = os.fork()
            if child == 0:
                try:
                    dist.group.WORLD.abort()
                    dist.group.WORLD.shutdown()
                    try:
                        dist.barrier()
                    except ValueError as error:
                        os._exit(0 if "a fork of it" in str(error) else 1)
                finally:
                    os._exit(2)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            for _ in range(3):
                self.assertEqual(self.sum_of_ranks(dist.group.WORLD, rank), 1)


class TimeoutsTest(ContractTest):
    """Of calls that end by a timeout of 0.3 s, not by the group's of 20 s."""

    short_s = scaled_s(0.3)  # scaled, because some calls must succeed within it
    short = timedelta(seconds=short_s)

    def on_rank_0(self, call):
        """Rank 1 makes no call until rank 0's has failed."""
        @self.on_ranks(2)
        def body(rank, size):
            store = distributed_c10d._get_default_store()
            dist.barrier()
            if rank == 0:
                expected = rf"timed out waiting for rank 1 .*; rank 0 waited \S+ s of {self.short_s:g} s"
                try:
                    self.within(5, dist.DistBackendError, expected, lambda: call(dist.group.WORLD))
                finally:
                    store.set("failed", "")
            else:
                store.wait(["failed"])

    def test_of_a_call(self):
        self.on_rank_0(lambda world: world.allreduce([torch.ones(3)], timeout=self.short).wait())
        self.on_rank_0(lambda world: world.barrier(timeout=self.short).wait())

    def test_of_a_wait(self):
        self.on_rank_0(lambda world: dist.irecv(torch.ones(3), 1).wait(self.short))
        self.on_rank_0(lambda world: dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(3), 1)])[0].wait(self.short))

    def test_of_a_group(self):
        def call(world):
            world.set_timeout(self.short)
            dist.all_reduce(torch.ones(3))

        self.on_rank_0(call)

    def test_a_timeout_of_one_call_does_not_affect_the_next(self):
        @self.on_ranks(2)
        def body(rank, size):
            world = dist.group.WORLD
            dist.barrier()
            world.barrier(timeout=self.short).wait()
            if rank == 1:
                time.sleep(2 * self.short_s)
            world.barrier().wait()
            with self.assertRaisesRegex(ValueError, "a timeout must be above 0"):
                world.set_timeout(timedelta(0))
