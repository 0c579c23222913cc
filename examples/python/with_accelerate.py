"""accelerate trains over shared memory: it uses the group that exists when its first Accelerator is created.

    torchrun --standalone --nproc-per-node 2 examples/python/with_accelerate.py

accelerate accepts only the backends whose names it knows, so the program creates the group. After the last step, all ranks have
the same weights, bit for bit.
"""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shardwise.torch  # noqa: F401  not needed if the package is installed

SAMPLES, BATCH, FEATURES, EPOCHS = 1536, 32, 8, 10


def main():
    dist.init_process_group("shardwise")
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, FEATURES)
    samples = TensorDataset(x, x.max(dim=1, keepdim=True).values)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(samples, batch_size=BATCH))

    losses = []
    for _ in range(EPOCHS):
        for inputs, targets in batches:  # each rank gets other batches
            loss = F.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())

    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gathered = accelerator.gather(weights[None])
    same = all(torch.equal(weights, other) for other in gathered)
    accelerator.print(f"{accelerator.num_processes} ranks of {dist.get_backend()}, loss {losses[0]:.2f} to {losses[-1]:.2f}, "
                      f"the same weights on all ranks: {same}")
    dist.destroy_process_group()
    if not same or losses[-1] > losses[0] / 4:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
