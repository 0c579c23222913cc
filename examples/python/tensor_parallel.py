"""PyTorch's tensor parallelism over shared memory: an MLP whose hidden features are cut over the ranks.

    torchrun --standalone --nproc-per-node 2 examples/python/tensor_parallel.py

Only the name of the backend is ours. Forward sums the ranks' partial results once, backward does so for the gradient of
the input; the result is that of one process.
"""
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwise.torch  # noqa: F401  not needed where the package is installed

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
    whole, x = Mlp(), torch.randn(TOKENS, HIDDEN, requires_grad=True)
    cut = parallelize_module(copy.deepcopy(whole), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    own_x = x.detach().clone().requires_grad_()
    y = whole(x)
    y.square().sum().backward()
    with CommDebugMode() as counted:
        own_y = cut(own_x)
        own_y.square().sum().backward()

    error = max(distance(own_y, y), distance(own_x.grad, x.grad))
    for name, parameter in cut.named_parameters():
        error = max(error, distance(parameter.grad.full_tensor(), whole.get_parameter(name).grad))
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks with {cut.up.weight.to_local().shape[0]} of {FFN} features each, "
              f"{counted.get_total_counts()} collectives; equal to one process: {error < 1e-5}")
    dist.destroy_process_group()
    if error >= 1e-5:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
