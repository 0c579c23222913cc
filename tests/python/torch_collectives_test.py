"""Every collective of torch.distributed over shared memory, against closed forms."""
import functools
import itertools
import threading
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from torch_ranks import RanksTest, value

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
MOVED = FLOATS + INTEGERS + [torch.complex64]
BITWISE = {ReduceOp.BAND: torch.bitwise_and, ReduceOp.BOR: torch.bitwise_or, ReduceOp.BXOR: torch.bitwise_xor}
REDUCED = [(op, dtype) for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX) for dtype in FLOATS + INTEGERS]
REDUCED += [(ReduceOp.AVG, dtype) for dtype in FLOATS] + [(op, dtype) for op in BITWISE for dtype in INTEGERS]
# None, one, a message that goes with its announcement, and one that is split unevenly over the ranks.
SHAPES = [(0,), (1,), (3, 5), (17, 301)]
CASES = list(itertools.product(SHAPES, MOVED))


def values(shape, size, dtype=torch.float32):
    return [value(shape, rank, dtype) for rank in range(size)]


def reduced(op, terms):
    """Exact; products and averages rounded once, by the rule for the dtype."""
    dtype, together = terms[0].dtype, torch.stack(terms)
    if op in BITWISE:
        return functools.reduce(BITWISE[op], terms)
    if op is ReduceOp.MIN:
        return together.to(torch.float64).amin(0).to(dtype)
    if op is ReduceOp.MAX:
        return together.to(torch.float64).amax(0).to(dtype)
    wide = together.to(torch.float64 if dtype.is_floating_point else torch.int64)
    if op is ReduceOp.AVG:  # divided where it was summed up
        return (wide.sum(0).to(torch.promote_types(dtype, torch.float32)) / len(terms)).to(dtype)
    return (wide.prod(0) if op is ReduceOp.PRODUCT else wide.sum(0)).to(dtype)


def sum_of(shape, size):
    return reduced(ReduceOp.SUM, values(shape, size))


class CollectivesTest(RanksTest):
    def equal(self, x, expected):
        self.assertEqual(x.dtype, expected.dtype)
        self.assertTrue(torch.equal(x, expected), f"{x} is not {expected}")

    def test_broadcast(self):
        @self.on_ranks(1, 2, 3)
        def body(rank, size):
            for (shape, dtype), root in itertools.product(CASES, range(size)):
                x = value(shape, rank, dtype)
                dist.broadcast(x, root)
                self.equal(x, value(shape, root, dtype))

    def test_all_reduce(self):
        @self.on_ranks(1, 2, 3)
        def body(rank, size):
            for shape, (op, dtype) in itertools.product(SHAPES, REDUCED):
                x = value(shape, rank, dtype)
                dist.all_reduce(x, op)
                self.equal(x, reduced(op, values(shape, size, dtype)))

    def test_reduce(self):
        @self.on_ranks(1, 2, 3)
        def body(rank, size):
            for shape, (op, dtype), root in itertools.product(SHAPES[1:3], REDUCED, range(size)):
                x, terms = value(shape, rank, dtype), values(shape, size, dtype)
                dist.reduce(x, root, op)
                self.equal(x, reduced(op, terms) if rank == root else terms[rank])

    def test_strided_tensors(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            for shape in [(3, 5), (60, 90)]:
                x = value(shape, rank).t()
                dist.all_reduce(x)
                self.equal(x, sum_of(shape, size).t())
                pieces = [torch.zeros(shape).t() for _ in range(size)]
                dist.all_gather(pieces, value(shape, rank).t())
                for piece, expected in zip(pieces, values(shape, size)):
                    self.equal(piece, expected.t())

    def test_all_gather(self):
        @self.on_ranks(1, 2, 3)
        def body(rank, size):
            for shape, dtype in CASES:
                x, expected = value(shape, rank, dtype), values(shape, size, dtype)
                pieces = [torch.zeros(shape, dtype=dtype) for _ in range(size)]
                dist.all_gather(pieces, x)
                for piece, other in zip(pieces, expected):
                    self.equal(piece, other)
                whole = torch.zeros((size, *shape), dtype=dtype)
                dist.all_gather_into_tensor(whole, x)
                self.equal(whole, torch.stack(expected))

    def test_reduce_scatter(self):
        @self.on_ranks(1, 2, 3)
        def body(rank, size):
            for shape, (op, dtype) in itertools.product(SHAPES, REDUCED):
                whole, out = (size, *shape), torch.zeros(shape, dtype=dtype)
                x, expected = value(whole, rank, dtype), reduced(op, values(whole, size, dtype))[rank]
                dist.reduce_scatter(out, list(x.unbind()), op)
                self.equal(out, expected)
                out.zero_()
                dist.reduce_scatter_tensor(out, x, op)
                self.equal(out, expected)
                self.equal(x, value(whole, rank, dtype))

    def test_gather_and_scatter(self):
        @self.on_ranks(1, 2, 3)
        def body(rank, size):
            for (shape, dtype), root in itertools.product(CASES, range(size)):
                x, expected = value(shape, rank, dtype), values(shape, size, dtype)
                pieces = [torch.zeros(shape, dtype=dtype) for _ in range(size)] if rank == root else None
                dist.gather(x, pieces, dst=root)
                for piece, other in zip(pieces or [], expected):
                    self.equal(piece, other)
                x.zero_()
                dist.scatter(x, expected if rank == root else None, src=root)
                self.equal(x, expected[rank])

    def test_all_to_all(self):
        @self.on_ranks(1, 2, 3)
        def body(rank, size):
            for shape, dtype in CASES:
                theirs = [value((size, *shape), peer, dtype) for peer in range(size)]
                expected = torch.stack([whole[rank] for whole in theirs])
                out = torch.zeros((size, *shape), dtype=dtype)
                dist.all_to_all_single(out, theirs[rank])
                self.equal(out, expected)
                pieces = list(torch.zeros((size, *shape), dtype=dtype).unbind())
                dist.all_to_all(pieces, list(theirs[rank].unbind()))
                self.equal(torch.stack(pieces), expected)

    def test_uneven_pieces(self):
        @self.on_ranks(1, 2, 3)
        def body(rank, size):
            def piece(sender, receiver):
                return value((sender * 2 + receiver, 70), sender + 3 * receiver)

            gathered = [torch.zeros(peer, 70) for peer in range(size)]
            dist.all_gather(gathered, piece(0, rank))
            for peer, other in enumerate(gathered):
                self.equal(other, piece(0, peer))
            out = torch.zeros(rank, 70)
            dist.reduce_scatter(out, [piece(0, peer) for peer in range(size)])
            self.equal(out, size * piece(0, rank))

            gathered = [torch.zeros_like(piece(peer, 0)) for peer in range(size)] if rank == 0 else None
            dist.gather(piece(rank, 0), gathered, dst=0)
            for peer, other in enumerate(gathered or []):
                self.equal(other, piece(peer, 0))
            out = torch.zeros_like(piece(0, rank))
            dist.scatter(out, [piece(0, peer) for peer in range(size)] if rank == 0 else None, src=0)
            self.equal(out, piece(0, rank))

            sent = [piece(rank, peer) for peer in range(size)]
            expected = [piece(peer, rank) for peer in range(size)]
            received = [torch.zeros_like(other) for other in expected]
            dist.all_to_all(received, sent)
            for other, right in zip(received, expected):
                self.equal(other, right)
            out = torch.zeros_like(torch.cat(expected))
            dist.all_to_all_single(out, torch.cat(sent), [len(other) for other in expected], [len(other) for other in sent])
            self.equal(out, torch.cat(expected))

    def test_barrier(self):
        @self.on_ranks(1, 2, 3)
        def body(rank, size):
            begin = time.monotonic()
            if rank == size - 1:
                time.sleep(0.2)
            dist.barrier()
            self.assertGreaterEqual(time.monotonic() - begin, 0.19)
            dist.group.WORLD.monitored_barrier(timedelta(seconds=20), True)

    def test_async_op_is_done_at_once(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            x, expected = value((5,), rank), sum_of((5,), size)
            work = dist.all_reduce(x, async_op=True)
            self.assertTrue(work.is_completed() and work.wait())
            self.equal(x, expected)
            self.equal(work.get_future().wait()[0], expected)
            doubled = work.get_future().then(lambda future: future.value()[0] * 2)
            self.equal(doubled.wait(), 2 * expected)
            dist.barrier(async_op=True).wait()

    def test_coalescing(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            tensors = [value(shape, rank) for shape in SHAPES]
            with warnings.catch_warnings(action="ignore"):
                dist.all_reduce_coalesced(tensors)
            for x, shape in zip(tensors, SHAPES):
                self.equal(x, sum_of(shape, size))

    def test_functional_collectives(self):
        import torch.distributed._functional_collectives as functional

        @self.on_ranks(2, 3)
        def body(rank, size):
            world, shape = dist.group.WORLD, (size * 2, 3)
            x, all_x = value(shape, rank), values(shape, size)
            self.equal(functional.all_reduce(x, "sum", world) + 0, sum(all_x))
            self.equal(functional.all_reduce(x, "avg", world) + 0, sum(all_x) / size)
            self.equal(functional.all_gather_tensor(x, 0, world) + 0, torch.cat(all_x))
            self.equal(functional.all_gather_tensor(x, 1, world) + 0, torch.cat(all_x, 1))
            self.equal(functional.reduce_scatter_tensor(x, "sum", 0, world) + 0, sum(all_x)[2 * rank: 2 * rank + 2])
            self.equal(functional.broadcast(x, 1, world) + 0, all_x[1])
            exchanged = functional.all_to_all_single(x, None, None, world) + 0
            self.equal(exchanged, torch.cat([other[2 * rank: 2 * rank + 2] for other in all_x]))
            shifted = functional.permute_tensor(x.flatten(), [*range(1, size), 0], world) + 0
            self.equal(shifted, all_x[rank - 1].flatten())
            for y, other in zip(functional.all_reduce_coalesced([x, 2 * x], "sum", world), (1, 2)):
                self.equal(y + 0, other * sum(all_x))

    def test_functional_collectives_have_gradients(self):
        import torch.distributed._functional_collectives as functional

        @self.on_ranks(2, 3)
        def body(rank, size):
            x = value((4,), rank).requires_grad_()
            (functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD) * (rank + 1)).sum().backward()
            self.equal(x.grad, torch.full((4,), size * (size + 1) / 2))

    def test_other_threads_run_while_a_rank_waits(self):
        @self.on_ranks(2)
        def body(rank, size):
            turns, waits = [], threading.Event()

            def count():
                while not waits.is_set():
                    turns.append(1)
                    time.sleep(0.001)

            if rank == 0:
                thread = threading.Thread(target=count)
                thread.start()
                time.sleep(0.05)
                before = len(turns)
                dist.barrier()
                counted = len(turns) - before
                waits.set()
                thread.join()
                self.assertGreater(counted, 10)
            else:
                time.sleep(0.5)
                dist.barrier()

    def test_what_is_wrong_is_said(self):
        @self.on_ranks(2)
        def body(rank, size):
            with self.assertRaisesRegex(ValueError, "dtype must be"):
                dist.all_reduce(torch.zeros(3, dtype=torch.uint16))
            # The group still works.
            dist.barrier()
            with self.assertRaisesRegex(ValueError, "accepts one CPU tensor per rank"):
                dist.all_gather([torch.zeros(2)] * 3, torch.zeros(2))
