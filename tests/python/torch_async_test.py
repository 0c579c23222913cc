"""Calls with async_op=True: several outstanding handles, waited for in any order, between other calls."""
import random

import torch
import torch.distributed as dist

from torch_ranks import RanksTest, value

SHAPES = [(1,), (3, 5), (170, 301)]  # the last is larger than a message that goes with its announcement


def values(shape, size):
    return [value(shape, rank) for rank in range(size)]


def collectives(shape, rank, size):
    """Yields (work, outputs, expected outputs) of one call of each collective, which has been started."""
    x, terms = value(shape, rank), values(shape, size)
    yield dist.all_reduce(x, async_op=True), [x], [sum(terms)]
    x, root = value(shape, rank), size - 1
    yield dist.broadcast(x, root, async_op=True), [x], [terms[root]]
    pieces = [torch.zeros(shape) for _ in range(size)]
    yield dist.all_gather(pieces, terms[rank], async_op=True), pieces, terms
    whole = torch.zeros(size, *shape)
    yield dist.all_gather_into_tensor(whole, terms[rank], async_op=True), [whole], [torch.stack(terms)]
    out, full = torch.zeros(shape), values((size, *shape), size)
    yield dist.reduce_scatter_tensor(out, full[rank], async_op=True), [out], [sum(full)[rank]]
    exchanged = torch.zeros(size, *shape)
    yield (dist.all_to_all_single(exchanged, full[rank], async_op=True), [exchanged],
           [torch.stack([other[rank] for other in full])])
    out = torch.zeros(shape)
    yield dist.scatter(out, terms if rank == 0 else None, 0, async_op=True), [out], [terms[rank]]
    pieces = [torch.zeros(shape) for _ in range(size)] if rank == 0 else None
    yield dist.gather(terms[rank], pieces, 0, async_op=True), pieces or [], terms if rank == 0 else []


class AsyncTest(RanksTest):
    def check(self, outputs, expected):
        self.assertEqual(len(outputs), len(expected))
        for x, right in zip(outputs, expected):
            self.assertTrue(torch.equal(x, right), f"{x} is not {right}")

    def test_many_handles_in_any_order(self):
        """Each rank waits in an order of its own."""
        @self.on_ranks(2, 3)
        def body(rank, size):
            order = random.Random(rank)
            for _ in range(5):
                calls = [call for shape in SHAPES for call in collectives(shape, rank, size)]
                order.shuffle(calls)
                for work, outputs, expected in calls:
                    self.assertTrue(work.wait())
                    self.assertTrue(work.is_completed())
                    self.check(outputs, expected)

    def test_between_synchronous_calls_and_messages(self):
        @self.on_ranks(2)
        def body(rank, size):
            for step in range(20):
                received, other = torch.zeros(170, 301), 1 - rank
                receive = dist.irecv(received, other, tag=step)
                x = value((170, 301), rank)
                work = dist.all_reduce(x, async_op=True)
                total = torch.tensor([step + rank])
                dist.all_reduce(total)
                send = dist.isend(value((170, 301), rank + step), other, tag=step)
                barrier = dist.barrier(async_op=True)
                for handle in (barrier, send, work, receive):
                    handle.wait()
                self.assertEqual(total.item(), 2 * step + 1)
                self.check([x, received], [sum(values((170, 301), size)), value((170, 301), other + step)])

    def test_in_groups_that_overlap(self):
        """Handles of three groups are outstanding together."""
        @self.on_ranks(3)
        def body(rank, size):
            pairs = [(0, 1), (1, 2), (0, 2)]
            groups = [dist.new_group(pair) for pair in pairs]
            for step in range(20):
                started = []
                for pair, group in zip(pairs, groups):
                    if rank in pair:
                        x = value((40, 50), rank + step)
                        started.append((dist.all_reduce(x, group=group, async_op=True), x, pair))
                for work, x, pair in reversed(started):
                    work.wait()
                    self.check([x], [sum(value((40, 50), peer + step) for peer in pair)])

    def test_futures_of_many_calls(self):
        @self.on_ranks(2)
        def body(rank, size):
            tensors = [value((300,), rank + step) for step in range(30)]
            futures = [dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2) for x in tensors]
            for step, done in enumerate(torch.futures.wait_all(futures)):
                self.check([done], [2 * sum(value((300,), peer + step) for peer in range(size))])

    def test_a_wrong_order_is_an_error_of_the_handle(self):
        """Ranks that start their calls in different orders: both handles name both calls."""
        @self.on_ranks(2)
        def body(rank, size):
            x = torch.ones(4)
            work = dist.all_reduce(x, async_op=True) if rank == 0 else dist.broadcast(x, 0, async_op=True)
            with self.assertRaisesRegex(dist.DistBackendError, "rank 0 runs all_reduce .*rank 1 runs broadcast"):
                work.wait()
