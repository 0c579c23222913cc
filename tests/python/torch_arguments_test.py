"""Arguments that collectives refuse before anything is sent, and those that they accept as Gloo does: tensors that share memory,
complex numbers."""
import itertools
import re
import warnings

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from torch_ranks import RanksTest

COMPLEX = [torch.complex64, torch.complex128]


def options(kind, **fields):
    result = kind()
    for name, value in fields.items():
        setattr(result, name, value)
    return result


def complex_value(rank, dtype, count=3):
    return torch.complex(torch.arange(count, dtype=torch.float64) + rank, torch.full((count,), 2.0 - rank, dtype=torch.float64)
                         ).to(dtype)


class ArgumentsTest(RanksTest):
    def equal(self, x, expected):
        self.assertEqual(x.dtype, expected.dtype)
        self.assertTrue(torch.equal(x, expected), f"{x} is not {expected}")

    def refused(self, text, call):
        with self.assertRaisesRegex(ValueError, text):
            call()


class SharedMemoryTest(ArgumentsTest):
    """Each tensor of a coalesced call is reduced from the value that it had before the call."""

    def coalesced(self, tensors):
        with warnings.catch_warnings(action="ignore"):
            dist.all_reduce_coalesced(tensors)

    def test_one_tensor_twice(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            x, y = torch.full((3,), rank + 1.0), torch.full((5,), 2.0)
            total = size * (size + 1) / 2
            self.coalesced([x, y, x])
            self.equal(x, torch.full((3,), total))
            self.equal(y, torch.full((5,), 2.0 * size))
            x = torch.full((3,), rank + 1.0)
            with dist._coalescing_manager():
                dist.all_reduce(x)
                dist.all_reduce(x)
            self.equal(x, torch.full((3,), total))

    def test_parts_that_overlap(self):
        @self.on_ranks(2)
        def body(rank, size):
            x = torch.arange(6.0) + rank
            self.coalesced([x[2:], x[:4]])
            self.equal(x, 2 * torch.arange(6.0) + 1)
            matrix = torch.arange(12.0).reshape(3, 4)
            self.coalesced(list(matrix.unbind(1)))  # interleaved columns share nothing
            self.equal(matrix, 2 * torch.arange(12.0).reshape(3, 4))

    def test_of_one_rank_only(self):
        """All ranks run the same collectives, whichever tensors of theirs share memory."""
        @self.on_ranks(2)
        def body(rank, size):
            x, y = torch.ones(3), torch.full((3,), 10.0)
            self.coalesced([x, x] if rank == 0 else [x, y])
            self.equal(x, torch.full((3,), 11.0 if rank == 0 else 2.0))
            if rank == 1:
                self.equal(y, torch.full((3,), 11.0))
            dist.barrier()


class ComplexTest(ArgumentsTest):
    def test_sums_and_averages(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            group = dist.group.WORLD
            for dtype, op in itertools.product(COMPLEX, (ReduceOp.SUM, ReduceOp.AVG)):
                def total(count=3):
                    terms = sum(complex_value(peer, dtype, count) for peer in range(size))
                    return terms / size if op is ReduceOp.AVG else terms

                x = complex_value(rank, dtype)
                group.allreduce([x], op).wait()
                torch.testing.assert_close(x, total())
                x = complex_value(rank, dtype)
                dist.reduce(x, 1, op)
                torch.testing.assert_close(x, total() if rank == 1 else complex_value(rank, dtype))
                out, whole = torch.zeros(3, dtype=dtype), complex_value(rank, dtype, 3 * size)
                dist.reduce_scatter(out, list(whole.chunk(size)), op)
                torch.testing.assert_close(out, total(3 * size).chunk(size)[rank])
                dist.reduce_scatter_tensor(out.zero_(), whole, op)
                torch.testing.assert_close(out, total(3 * size).chunk(size)[rank])

    def test_coalesced_sums(self):
        @self.on_ranks(2)
        def body(rank, size):
            for dtype in COMPLEX:
                x, y, total = complex_value(rank, dtype), torch.ones(4), complex_value(0, dtype) + complex_value(1, dtype)
                dist.group.WORLD.allreduce_coalesced([x, y]).wait()
                self.equal(x, total)
                self.equal(y, torch.full((4,), 2.0))
                matrix = torch.stack([complex_value(rank, dtype)] * 2, 1).t()
                out = torch.zeros(1, 3, dtype=dtype)
                dist.group.WORLD.reduce_scatter_tensor_coalesced([out], [matrix]).wait()
                self.equal(out[0], total)

    def test_views_that_do_not_hold_their_values_are_refused(self):
        """Their memory holds the values before conjugation or negation; torch's groups resolve most of them first."""
        @self.on_ranks(2)
        def body(rank, size):
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            conjugated = complex_value(rank, torch.complex64).conj()
            for x, rest in ((conjugated, "conjugated view; call resolve_conj() first"),
                            (conjugated.imag, "negated view; call resolve_neg() first")):
                text = re.escape("accepts tensors whose memory holds their values; got a " + rest)
                self.refused("broadcast: " + text, lambda: backend.broadcast([x]))
                self.refused("allreduce: " + text, lambda: backend.allreduce([x]))
                self.refused("send: " + text, lambda: backend.send([x], 1 - rank, 0))
            dist.broadcast(conjugated.resolve_conj(), 0)
            x = conjugated.imag.resolve_neg()
            dist.all_reduce(x)
            self.equal(x, torch.full((3,), -3.0))

    def test_other_reductions_are_refused(self):
        @self.on_ranks(2)
        def body(rank, size):
            x = complex_value(rank, torch.complex64)
            for op in (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
                self.refused("allreduce: complex tensors support SUM and AVG; got another", lambda: dist.group.WORLD.allreduce([x], op))
                self.refused("reduce_scatter_tensor: complex tensors support SUM and AVG",
                             lambda: dist.reduce_scatter_tensor(x[:1], x[:2], op))
            dist.barrier()


class ShapesTest(ArgumentsTest):
    """Same number of elements, another shape: what arrived would be in the wrong place."""

    def test_on_all_ranks(self):
        """Each rank raises its own error, also after a peer's has aborted the group."""
        @self.on_ranks(2)
        def body(rank, size):
            wide, tall = [torch.ones(2, 3)] * 2, [torch.ones(3, 2)] * 2
            own = r"must have the same shape; got \[[23], [23]\] and \[[23], [23]\]"
            with warnings.catch_warnings(action="ignore"):
                self.refused(own, lambda: dist.all_gather(tall, wide[0]))
                self.refused(own, lambda: dist.reduce_scatter(tall[0], wide))
                self.refused(own, lambda: dist.all_gather_coalesced([tall, tall], wide))

    def aborting(self, text, call):
        """The root, or the one rank that can see it, aborts the group: its peers already wait for it."""
        @self.on_ranks(2)
        def body(rank, size):
            if rank == 0:
                self.refused(text, lambda: call(rank))
            else:
                with self.assertRaisesRegex(dist.DistBackendError, "rank 0 .*" + text):
                    call(rank)

    def test_on_one_rank(self):
        wide, tall, own = torch.ones(2, 3), torch.ones(3, 2), "must have the same shape"
        self.aborting(own, lambda rank: dist.all_gather([tall if rank == 0 else wide] * 2, wide))
        self.aborting(own, lambda rank: dist.group.WORLD.allgather_coalesced([[tall if rank == 0 else wide]] * 2, [wide]).wait())
        self.aborting(own, lambda rank: dist.reduce_scatter(tall if rank == 0 else wide, [wide, wide]))
        self.aborting(own, lambda rank: dist.gather(wide, [tall, tall] if rank == 0 else None))
        self.aborting(own, lambda rank: dist.scatter(wide, [tall, tall] if rank == 0 else None))
        self.aborting(own, lambda rank: dist.all_to_all([tall if rank == 0 else wide] * 2, [wide, wide]))

    def test_rows_of_all_to_all_single(self):
        self.aborting("own part of the output; got 2 rows of .* for 2 rows of", lambda rank: dist.all_to_all_single(torch.ones(4, 3 if rank == 0 else 2), torch.ones(4, 2)))

    def test_sizes_of_peers(self):
        """Both ranks raise an error when they compare their calls."""
        @self.on_ranks(2)
        def body(rank, size):
            outputs = [torch.zeros(3), torch.zeros(3)]
            outputs[1 - rank] = torch.zeros(5)
            with self.assertRaisesRegex(dist.DistBackendError, "rank 0 runs all_gather .*, rank 1 runs all_gather"):
                dist.all_gather(outputs, torch.ones(3))
            self.equal(outputs[1 - rank], torch.zeros(5))


class ListsTest(ArgumentsTest):
    def test_several_tensors(self):
        @self.on_ranks(2)
        def body(rank, size):
            group, x = dist.group.WORLD, torch.ones(3)
            pieces = [[x, x, x, x]]
            for call in (lambda: group.allreduce([x, x]), lambda: group.broadcast([x, x], options(dist.BroadcastOptions)),
                         lambda: group.allgather(pieces, [x, x]), lambda: group.reduce_scatter([x, x], pieces),
                         lambda: group.send([x, x], 1 - rank, 0),
                         lambda: group.gather([[x, x]] if rank == 0 else [], [x, x], options(dist.GatherOptions))):
                self.refused("accepts one tensor; got 2; call it once per tensor", call)
            dist.barrier()

    def test_sparse_pieces(self):
        @self.on_ranks(2)
        def body(rank, size):
            with warnings.catch_warnings(action="ignore"):
                sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,))
            x = torch.ones(4)
            for call in (lambda: dist.all_gather([sparse, sparse], x), lambda: dist.reduce_scatter(x, [sparse, sparse])):
                self.refused("accepts dense tensors on the CPU; got a Sparse tensor", call)

    def test_counts_of_lists(self):
        @self.on_ranks(2)
        def body(rank, size):
            x = torch.ones(3)
            for call in (lambda: dist.all_gather([x, x, x], x), lambda: dist.group.WORLD.allgather_coalesced([[x]] * 3, [x]),
                         lambda: dist.reduce_scatter(x, [x])):
                self.refused(re.escape("accepts one CPU tensor per rank, all of one dtype; got "), call)
