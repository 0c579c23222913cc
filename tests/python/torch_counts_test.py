"""The number of collectives that DTensor's plans of tensor and sequence parallelism run on the backend."""
import copy
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)

from torch_ranks import RanksTest


class Mlp(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(hidden), Mlp(hidden, ffn)

    def forward(self, x):
        return self.mlp(self.norm(x))


class CountsTest(RanksTest):
    """Counts collectives of forward, then of backward."""

    def counts(self, call):
        with CommDebugMode() as counted:
            result = call()
        return result, {op.__name__.split(".")[0]: count for op, count in counted.get_comm_counts().items() if count}

    def check(self, call, forward, backward):
        y, counted = self.counts(call)
        self.assertEqual(counted, forward)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of inputs that need no gradient
            self.assertEqual(self.counts(lambda: y.sum().backward())[1], backward)
        return y

    def test_column_then_row(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            model = parallelize_module(Mlp(6, 12), init_device_mesh("cpu", (size,)),
                                       {"up": ColwiseParallel(), "down": RowwiseParallel()})
            self.check(lambda: model(torch.ones(4, 6, requires_grad=True)), {"all_reduce": 1}, {"all_reduce": 1})
            self.check(lambda: model(torch.ones(4, 6)), {"all_reduce": 1}, {})  # the input needs no gradient

    def test_sequence_parallel(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            mesh = init_device_mesh("cpu", (size,))
            plan = {"norm": SequenceParallel(),
                    "mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
                    "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(output_layouts=Shard(1))}
            reference, x = Block(6, 12), torch.randn(2, 4 * size, 6)
            model = parallelize_module(copy.deepcopy(reference), mesh, plan)
            one_each = {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 1}
            local = x.chunk(size, 1)[rank].clone().requires_grad_()
            y = self.check(lambda: model(local), one_each, one_each)
            torch.testing.assert_close(y, reference(x).chunk(size, 1)[rank], rtol=1e-5, atol=1e-5)

    def test_vocabulary_and_loss(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            mesh, ids = init_device_mesh("cpu", (size,)), torch.arange(7)
            embedding = parallelize_module(nn.Embedding(4 * size, 6), mesh, RowwiseParallel(input_layouts=Replicate()))
            self.check(lambda: embedding(ids % (4 * size)), {"all_reduce": 1}, {})
            logits = distribute_tensor(torch.randn(7, 4 * size, requires_grad=True), mesh, [Shard(1)])
            with loss_parallel():  # the largest logit, the sum of exponentials, the label's logit
                self.check(lambda: F.cross_entropy(logits, ids % 3), {"all_reduce": 3}, {})
