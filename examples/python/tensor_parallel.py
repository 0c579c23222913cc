"""PyTorch's tensor parallelism over shared memory: an MLP whose hidden features are sharded over the ranks.

    torchrun --standalone --nproc-per-node 2 examples/python/tensor_parallel.py

Only the backend's name differs from other programs with parallelize_module. Forward sums the ranks' partial outputs, and
backward sums the partial gradients of the input, by one all_reduce each. The result equals that of one process.
"""
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwise.torch  # noqa: F401  not needed if the package is installed

HIDDEN, FFN, TOKENS = 64, 252, 7


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, FFN), nn.Linear(FFN, HIDDEN)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def main():
    torch.manual_seed(0)  # the same weights and input on every rank
    dist.init_process_group("shardwise")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    unsharded, x = Mlp(), torch.randn(TOKENS, HIDDEN, requires_grad=True)
    sharded = parallelize_module(copy.deepcopy(unsharded), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    x_tp = x.detach().clone().requires_grad_()
    y = unsharded(x)
    y.square().sum().backward()
    with CommDebugMode() as counted:
        y_tp = sharded(x_tp)
        y_tp.square().sum().backward()

    error = max(distance(y_tp, y), distance(x_tp.grad, x.grad))
    for name, parameter in sharded.named_parameters():
        error = max(error, distance(parameter.grad.full_tensor(), unsharded.get_parameter(name).grad))
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks with {sharded.up.weight.to_local().shape[0]} of {FFN} features each, "
              f"{counted.get_total_counts()} collectives; equal to one process: {error < 1e-5}")
    dist.destroy_process_group()
    if error >= 1e-5:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
