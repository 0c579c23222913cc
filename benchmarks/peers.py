"""PyTorch's side of the benchmarks: the same model and step, eager in one process or DTensor over Gloo.

    peers.py eager                 one process
    peers.py dtensor               one rank; RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT tell which
    peers.py mlp fp32|bf16         the gated MLP, one process

Speaks the protocol of worker.h: a number of steps in, their seconds out.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCAB, LENGTH, BATCH = 512, 8, 8, 4, 1376, 32000, 256, 4
HEAD_DIM = HIDDEN // HEADS


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def rotary_tables():
    inverse = 1.0 / 10000 ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angles = torch.outer(torch.arange(LENGTH).float(), inverse).repeat(1, 2)
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        b, s = x.shape[:2]
        q = self.q_proj(x).view(b, s, -1, HEAD_DIM).transpose(1, 2)
        k = self.k_proj(x).view(b, s, -1, HEAD_DIM).transpose(1, 2)
        v = self.v_proj(x).view(b, s, -1, HEAD_DIM).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, s, -1))


class Mlp(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, ffn, bias=False)
        self.up_proj = nn.Linear(hidden, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, eps=1e-6), nn.RMSNorm(HIDDEN, eps=1e-6)
        self.attention, self.mlp = Attention(), Mlp(HIDDEN, FFN)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-6)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids, cos, sin):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def tensor_parallel(model, mesh):
    """PyTorch's own recipe for a Llama with sequence parallelism and a vocabulary-parallel loss."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    whole = tp.PrepareModuleInput
    tp.parallelize_module(model, mesh, {
        "embedding": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": tp.SequenceParallel(),
        "head": tp.ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    })
    for block in model.blocks:
        tp.parallelize_module(block, mesh, {
            "norm1": tp.SequenceParallel(),
            "norm2": tp.SequenceParallel(),
            "attention": whole(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)),
            "attention.q_proj": tp.ColwiseParallel(),
            "attention.k_proj": tp.ColwiseParallel(),
            "attention.v_proj": tp.ColwiseParallel(),
            "attention.o_proj": tp.RowwiseParallel(output_layouts=Shard(1)),
            "mlp": whole(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate_proj": tp.ColwiseParallel(),
            "mlp.up_proj": tp.ColwiseParallel(),
            "mlp.down_proj": tp.RowwiseParallel(output_layouts=Shard(1)),
        })
    return model


def train_step(model, is_parallel):
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=generator)
    cos, sin = rotary_tables()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=not is_parallel,
                                  foreach=is_parallel)

    def step():
        optimizer.zero_grad(set_to_none=True)
        if is_parallel:
            from torch.distributed.tensor.parallel import loss_parallel
            with loss_parallel():
                loss = F.cross_entropy(model(ids, cos, sin).flatten(0, 1), ids.flatten())
                loss.backward()
        else:
            loss = F.cross_entropy(model(ids, cos, sin).flatten(0, 1), ids.flatten())
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def mlp_step(dtype):
    model = Mlp(4096, 11008).to(dtype)
    x = torch.randn(16, 128, 4096, dtype=dtype, requires_grad=True)
    y_gradient = torch.randn(16, 128, 4096, dtype=dtype)

    def step():
        x.grad = None
        model(x).backward(y_gradient)

    return step


def serve(step):
    for line in sys.stdin:
        if dist.is_initialized():
            dist.barrier()
        begin = time.perf_counter()
        for _ in range(int(line)):
            step()
        if dist.is_initialized():
            dist.barrier()
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


def main():
    torch.manual_seed(1)
    kind = sys.argv[1]
    threads = int(os.environ["SHARDWISE_THREADS"])
    torch.set_num_threads(threads)
    if kind == "dtensor":
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["RANK"])]})
        dist.init_process_group("gloo")
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        serve(train_step(tensor_parallel(Llama(), mesh), is_parallel=True))
        dist.destroy_process_group()
    elif kind == "eager":
        serve(train_step(Llama(), is_parallel=False))
    else:
        serve(mlp_step({"fp32": torch.float32, "bf16": torch.bfloat16}[sys.argv[2]]))


if __name__ == "__main__":
    main()
