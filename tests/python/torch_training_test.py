"""Training features built on collectives (DTensor, DDP, FSDP2, checkpoints), against one process."""
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)

from torch_ranks import RanksTest

H, F_, V, S, B = 12, 24, 30, 6, 4
# fp32 sums of up to S·B·F_ summands in another order; values of order one.
CLOSE = dict(rtol=1e-5, atol=1e-5)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(H, F_), nn.Linear(F_, H)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp, self.head = nn.LayerNorm(H), Mlp(), nn.Linear(H, V, bias=False)

    def forward(self, x):
        return self.head(x + self.mlp(self.norm(x)))


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


class TrainingTest(RanksTest):
    def same_gradients(self, model, reference):
        expected = dict(reference.named_parameters())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(whole(parameter.grad), expected[name.removeprefix("module.")].grad, **CLOSE)

    def test_tensor_parallel_mlp(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            reference, x = Mlp(), torch.randn(S, B, H)
            model = parallelize_module(copy.deepcopy(reference), init_device_mesh("cpu", (size,)),
                                       {"up": ColwiseParallel(), "down": RowwiseParallel()})
            theirs, ours = x.clone().requires_grad_(), x.clone().requires_grad_()
            y = reference(theirs)
            y.square().sum().backward()
            with CommDebugMode() as counted:
                out = model(ours)
            self.assertEqual(counted.get_total_counts(), 1)
            self.assertEqual(counted.get_comm_counts()[torch.ops.c10d_functional.all_reduce], 1)
            with CommDebugMode() as counted:
                out.square().sum().backward()
            self.assertEqual(counted.get_total_counts(), 1)
            torch.testing.assert_close(out, y, **CLOSE)
            torch.testing.assert_close(ours.grad, theirs.grad, **CLOSE)
            self.same_gradients(model, reference)

    def test_sequence_and_loss_parallel(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            reference, x, labels = Model(), torch.randn(S, B, H), torch.randint(V, (S * B,))
            plan = {"norm": SequenceParallel(sequence_dim=0),
                    "mlp.up": ColwiseParallel(input_layouts=Shard(0)),
                    "mlp.down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
                    "head": ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(-1), use_local_output=False)}
            mesh = init_device_mesh("cpu", (size,))
            model = parallelize_module(copy.deepcopy(reference), mesh, plan)
            loss = F.cross_entropy(reference(x).flatten(0, 1), labels)
            loss.backward()
            with loss_parallel():
                ours = F.cross_entropy(model(distribute_tensor(x, mesh, [Shard(0)])).flatten(0, 1), labels)
                ours.backward()
            torch.testing.assert_close(whole(ours), loss, **CLOSE)
            self.same_gradients(model, reference)

    def test_redistribution(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            mesh = init_device_mesh("cpu", (size,))
            x = torch.arange(35.0).view(5, 7)  # uneven over both
            for source in (Shard(0), Shard(1), Replicate()):
                for target in (Shard(0), Shard(1), Replicate()):
                    y = distribute_tensor(x, mesh, [source]).redistribute(mesh, [target])
                    self.assertTrue(torch.equal(y.full_tensor(), x))

    def train(self, model, batch, optimizer, steps=3):
        for _ in range(steps):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    def trained_alone(self, reference, x):
        """Returns the reference after the same steps on the full batch."""
        self.train(reference, x, torch.optim.SGD(reference.parameters(), lr=0.1))
        return reference

    def test_ddp(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            reference, x = Model(), torch.randn(2 * size, B, H)
            # A rank with other initial weights gets rank 0's weights.
            model = copy.deepcopy(reference) if rank == 0 else Model()
            model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
            self.train(model, x.chunk(size)[rank], torch.optim.SGD(model.parameters(), lr=0.1))
            self.trained_alone(reference, x)
            self.same_gradients(model, reference)
            for ours, theirs in zip(model.parameters(), reference.parameters()):
                torch.testing.assert_close(ours, theirs, **CLOSE)

    def fully_sharded(self, reference, size, allocate=False):
        from torch.distributed.fsdp import fully_shard

        model, mesh = copy.deepcopy(reference), init_device_mesh("cpu", (size,))
        for part in (model.mlp, model):
            fully_shard(part, mesh=mesh)
            if allocate:  # gathered and reduced where the peers read it
                part.set_allocate_memory_from_process_group_for_comm(True)
        return model

    def test_fsdp2(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            for allocate in (False, True):
                reference, x = Model(), torch.randn(2 * size, B, H)
                model = self.fully_sharded(reference, size, allocate)
                self.train(model, x.chunk(size)[rank], torch.optim.SGD(model.parameters(), lr=0.1))
                self.trained_alone(reference, x)
                self.same_gradients(model, reference)
                for ours, theirs in zip(model.parameters(), reference.parameters()):
                    torch.testing.assert_close(whole(ours), theirs, **CLOSE)

    def test_two_axes(self):
        from torch.distributed.fsdp import fully_shard

        @self.on_ranks(4)
        def body(rank, size):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            reference, x = Model(), torch.randn(4, B, H)
            model = copy.deepcopy(reference)
            parallelize_module(model, mesh["tp"], {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()})
            for part in (model.mlp, model):
                fully_shard(part, mesh=mesh["dp"])
            self.train(model, x.chunk(2)[rank // 2], torch.optim.SGD(model.parameters(), lr=0.1))
            self.trained_alone(reference, x)
            self.same_gradients(model, reference)

    def test_distributed_checkpoint(self):
        import torch.distributed.checkpoint as checkpoint

        @self.on_ranks(2, 3)
        def body(rank, size):
            mesh, x = init_device_mesh("cpu", (size,)), torch.arange(35.0).view(5, 7)
            state = {"sharded": distribute_tensor(x, mesh, [Shard(0)]),
                     "replicated": distribute_tensor(2 * x, mesh, [Replicate()]),
                     "step": 3}
            checkpoint.save(state, checkpoint_id="saved")
            other = {"sharded": distribute_tensor(0 * x, mesh, [Shard(1)]), "replicated": torch.zeros(5, 7), "step": 0}
            checkpoint.load(other, checkpoint_id="saved")
            self.assertTrue(torch.equal(other["sharded"].full_tensor(), x) and torch.equal(other["replicated"], 2 * x))
            self.assertEqual(other["step"], 3)
