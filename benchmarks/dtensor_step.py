"""A training step with PyTorch's tensor parallelism, in which only the name of the backend changes: one rank.

    dtensor_step.py tp|sp|train_step|example gloo|shardwise|fake    RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: which rank

tp, sp: a Llama-like decoder whose blocks are sharded by parallelize_module as in PyTorch's tutorial, without or with
sequence parallelism; embedding and logits are sharded over the vocabulary; AdamW. train_step: the model and step of
peers.py. example: the sizes, layouts and step of fsdp_tp_example.py in github.com/pytorch/examples, which gathers its
logits; without FSDP, which has one rank there. Implements the protocol of worker.h: reads a number of steps, prints their
seconds, the last loss and the shape. A rank has one thread, bound to its own core. fake is PyTorch's backend that sends
nothing: its numbers are wrong, its time is that of a step without communication.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from machine import BUILD
from peers import TRAIN_STEP, Llama, Shape, batch_of, tensor_parallel, train_step

SHAPE = Shape(hidden=1024, layers=4, heads=16, kv_heads=16, ffn=2816, vocab=8192, length=512, batch=1)
EXAMPLE = Shape(hidden=256, layers=2, heads=16, kv_heads=16, ffn=768, vocab=32000, length=256, batch=8)


def training_step(model, is_sequence_parallel):
    ids, cos, sin = batch_of(SHAPE)
    # Without sequence parallelism norms are plain tensors, and torch's foreach does not mix them with DTensors.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=is_sequence_parallel)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with loss_parallel():
            loss = F.cross_entropy(model(ids, cos, sin).flatten(0, 1), ids.flatten())
            loss.backward()
        optimizer.step()
        return loss

    return step


def example_step(model):
    ids, cos, sin = batch_of(EXAMPLE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(ids, cos, sin).sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


def step_and_shape(kind, mesh):
    if kind == "example":
        return example_step(tensor_parallel(Llama(EXAMPLE), mesh, is_loss_parallel=False)), EXAMPLE.text()
    if kind == "train_step":
        return train_step(tensor_parallel(Llama(TRAIN_STEP), mesh), is_parallel=True), TRAIN_STEP.text()
    is_sequence_parallel = kind == "sp"
    model = tensor_parallel(Llama(SHAPE), mesh, is_sequence_parallel)
    return training_step(model, is_sequence_parallel), SHAPE.text()


def serve(step, shape):
    for line in sys.stdin:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(int(line)):
            loss = step()
        dist.barrier()
        seconds = time.perf_counter() - begin
        loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        print(json.dumps({"seconds": seconds, "loss": loss.item(), "shape": shape}), flush=True)


def main():
    kind, backend = sys.argv[1:]
    torch.manual_seed(1)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["RANK"])]})
    if backend == "shardwise":
        sys.path.append(str(BUILD / "python"))
        import shardwise.torch  # noqa: F401  registers the backend; an installed package registers it automatically
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend
        dist.init_process_group(backend, store=FakeStore(), rank=int(os.environ["RANK"]),
                                world_size=int(os.environ["WORLD_SIZE"]))
    else:
        dist.init_process_group(backend)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    serve(*step_and_shape(kind, mesh))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
