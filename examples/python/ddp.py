"""PyTorch's DistributedDataParallel over shared memory: each rank has a part of the batch; gradients are averaged.

    torchrun --standalone --nproc-per-node 2 examples/python/ddp.py

Only the backend's name differs from other DDP programs. After the last step, all ranks have the same weights, bit for bit.
"""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shardwise.torch  # noqa: F401  not needed if the package is installed

STEPS, BATCH, FEATURES = 200, 32, 8


def batch(generator):
    """Returns samples of the function to learn: the largest of the features."""
    x = torch.randn(BATCH, FEATURES, generator=generator)
    return x, x.max(dim=1, keepdim=True).values


def main():
    dist.init_process_group("shardwise")
    rank, size = dist.get_rank(), dist.get_world_size()
    # Every rank initializes different weights; DDP broadcasts rank 0's.
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(100 + rank)

    losses = []
    for _ in range(STEPS):
        x, y = batch(generator)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss := loss.detach() / size)
        losses.append(loss.item())

    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gathered = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(gathered, weights)
    same = all(torch.equal(weights, other) for other in gathered)
    if rank == 0:
        print(f"{size} ranks, loss {losses[0]:.2f} to {losses[-1]:.2f}, the same weights on all ranks: {same}")
    dist.destroy_process_group()
    if not same or losses[-1] > losses[0] / 4:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
