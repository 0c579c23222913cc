"""A training step of PyTorch's own tensor parallelism, of which nothing but the backend's name changes: one rank.

    dtensor_step.py tp|sp|train_step gloo|shardwise      RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT tell which rank

tp, sp: a Llama-like decoder, its blocks cut by parallelize_module as PyTorch's tutorial does, without sequence parallelism
or with it; embedding and logits cut over the vocabulary; AdamW. train_step: the model and step of peers.py. Speaks the
protocol of worker.h: a number of steps in, their seconds out, and the last loss and the shape beside them. A rank has one
thread and a core of its own.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)

import peers
from machine import BUILD
from peers import Mlp, rotate

HIDDEN, LAYERS, HEAD_DIM, FFN, VOCAB, LENGTH, BATCH = 1024, 4, 64, 2816, 8192, 512, 1
SHAPE = f"hidden {HIDDEN}, {LAYERS} layers, {HIDDEN // HEAD_DIM} heads, ffn {FFN}, vocab {VOCAB}, s {LENGTH}, b {BATCH}, fp32"


def rotary_tables():
    inverse = 1.0 / 10000 ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angles = torch.outer(torch.arange(LENGTH).float(), inverse).repeat(1, 2)
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x, cos, sin):
        b, s = x.shape[:2]
        q, k, v = (proj(x).view(b, s, -1, HEAD_DIM).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        out = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, s, -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, eps=1e-6), nn.RMSNorm(HIDDEN, eps=1e-6)
        self.attention, self.mlp = Attention(), Mlp(HIDDEN, FFN)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(HIDDEN, eps=1e-6), nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids, cos, sin):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def parallelized(model, mesh, is_sequence_parallel):
    between = Shard(1) if is_sequence_parallel else Replicate()  # what flows from block to block
    plan = {name: RowwiseParallel(output_layouts=between) for name in ("attention.o_proj", "mlp.down_proj")}
    plan |= {name: ColwiseParallel() for name in ("attention.q_proj", "attention.k_proj", "attention.v_proj", "mlp.gate_proj",
                                                  "mlp.up_proj")}
    outside = {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
               "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)}
    if is_sequence_parallel:
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel(),
                 "attention": PrepareModuleInput(input_layouts=(Shard(1), None, None),
                                                 desired_input_layouts=(Replicate(), None, None)),
                 "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))}
        outside["norm"] = SequenceParallel()
    parallelize_module(model, mesh, outside)
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


def training_step(model, is_sequence_parallel):
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(7))
    cos, sin = rotary_tables()
    # Norms stay plain tensors without sequence parallelism, and torch mixes no kinds in one list.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=is_sequence_parallel)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with loss_parallel():
            loss = F.cross_entropy(model(ids, cos, sin).flatten(0, 1), ids.flatten())
            loss.backward()
        optimizer.step()
        return loss

    return step


def step_and_shape(kind, mesh):
    if kind == "train_step":
        shape = (f"hidden {peers.HIDDEN}, {peers.LAYERS} layers, {peers.HEADS} heads, {peers.KV_HEADS} KV heads, "
                 f"ffn {peers.FFN}, vocab {peers.VOCAB}, s {peers.LENGTH}, b {peers.BATCH}, fp32")
        return peers.train_step(peers.tensor_parallel(peers.Llama(), mesh), is_parallel=True), shape
    is_sequence_parallel = kind == "sp"
    return training_step(parallelized(Model(), mesh, is_sequence_parallel), is_sequence_parallel), SHAPE


def serve(step, shape):
    for line in sys.stdin:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(int(line)):
            loss = step()
        dist.barrier()
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "loss": loss.full_tensor().item(), "shape": shape}), flush=True)


def main():
    kind, backend = sys.argv[1:]
    torch.manual_seed(1)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["RANK"])]})
    if backend == "shardwise":
        sys.path.append(str(BUILD / "python"))
        import shardwise.torch  # noqa: F401  registers the name, as an installed package does by itself
    dist.init_process_group(backend)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    serve(*step_and_shape(kind, mesh))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
