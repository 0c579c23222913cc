"""Point-to-point messages: send, recv, and features that torch.distributed builds on them."""
import itertools

import torch
import torch.distributed as dist
from torch import nn

from torch_ranks import RanksTest, value

SHAPES = [(0,), (1,), (3, 5), (17, 301), (700, 301)]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
CASES = list(itertools.product(SHAPES, DTYPES))


class MessagesTest(RanksTest):
    def equal(self, x, expected):
        self.assertTrue(x.dtype == expected.dtype and torch.equal(x, expected), f"{x} is not {expected}")

    def test_send_and_receive(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            for shape, dtype in CASES:
                if rank == 0:
                    for peer in range(1, size):
                        dist.send(value(shape, peer, dtype), peer)
                else:
                    x = torch.zeros(shape, dtype=dtype)
                    self.assertEqual(dist.recv(x, 0), 0)
                    self.equal(x, value(shape, rank, dtype))

    def test_ring(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            right, left = (rank + 1) % size, (rank - 1) % size
            for shape, dtype in CASES:
                for receive_first in (False, True):
                    x, expected = torch.zeros(shape, dtype=dtype), value(shape, left, dtype)
                    calls = [lambda: dist.isend(value(shape, rank, dtype), right), lambda: dist.irecv(x, left)]
                    for work in [call() for call in (reversed(calls) if receive_first else calls)]:
                        work.wait()
                    self.equal(x, expected)
                x.zero_()
                exchange = [dist.P2POp(dist.isend, value(shape, rank, dtype), right), dist.P2POp(dist.irecv, x, left)]
                for work in dist.batch_isend_irecv(exchange):
                    work.wait()
                self.equal(x, expected)

    def test_strided_tensors(self):
        @self.on_ranks(2)
        def body(rank, size):
            x = value((60, 90), 0).t() if rank == 0 else torch.zeros(60, 90).t()
            (dist.send if rank == 0 else dist.recv)(x, 1 - rank)
            self.equal(x, value((60, 90), 0).t())

    def test_tags_and_order(self):
        @self.on_ranks(2)
        def body(rank, size):
            if rank == 0:
                for number in (1, 2):
                    dist.send(torch.tensor([number]), 1, tag=7)
                dist.send(torch.tensor([3]), 1, tag=8)
            else:
                x = torch.tensor([0])
                for tag, number in [(8, 3), (7, 1), (7, 2)]:
                    dist.recv(x, 0, tag=tag)
                    self.equal(x, torch.tensor([number]))

    def test_from_any_rank(self):
        @self.on_ranks(3)
        def body(rank, size):
            if rank > 0:
                dist.send(torch.full((5,), rank), 0)
            else:
                senders = []
                for _ in range(2):
                    x = torch.zeros(5, dtype=torch.int64)
                    senders.append(dist.recv(x))
                    self.equal(x, torch.full((5,), senders[-1]))
                self.assertEqual(sorted(senders), [1, 2])

    def test_in_a_group(self):
        @self.on_ranks(3)
        def body(rank, size):
            group, x = dist.new_group([1, 2]), torch.tensor([rank])
            if rank == 2:
                dist.send(x, 1, group=group)  # global ranks
            elif rank == 1:
                dist.recv(x, 2, group=group)
                self.equal(x, torch.tensor([2]))

    def test_objects(self):
        @self.on_ranks(2)
        def body(rank, size):
            sent, objects = ["text", {"a": (1, 2.5)}], [None, None]
            if rank == 0:
                dist.send_object_list(sent, 1)
            else:
                dist.recv_object_list(objects, 0)
                self.assertEqual(objects, sent)

    def test_between_collectives(self):
        @self.on_ranks(2)
        def body(rank, size):
            x = torch.zeros(3)
            work = dist.irecv(x, 1 - rank)
            total = torch.tensor([rank + 1])
            dist.all_reduce(total)
            dist.send(torch.full((3,), float(rank)), 1 - rank)
            work.wait()
            self.equal(x, torch.full((3,), 1.0 - rank))
            self.assertEqual(total.item(), 3)

    def test_pipeline(self):
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        @self.on_ranks(2)
        def body(rank, size):
            layers, x, target = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), torch.randn(6, 4), torch.randn(6, 4)

            def loss(y, wanted):
                return (y - wanted).square().sum()

            schedule = ScheduleGPipe(PipelineStage(layers[rank], rank, size, torch.device("cpu")), 3, loss_fn=loss,
                                     scale_grads=False)
            losses = []
            if rank == 0:
                schedule.step(x)
            else:
                schedule.step(target=target, losses=losses)
            ours = [parameter.grad for parameter in layers[rank].parameters()]
            layers.zero_grad()
            whole = loss(layers[1](layers[0](x)), target)
            whole.backward()
            for gradient, parameter in zip(ours, layers[rank].parameters()):
                torch.testing.assert_close(gradient, parameter.grad)
            if rank == 1:
                torch.testing.assert_close(sum(losses), whole)
