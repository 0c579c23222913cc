"""PyTorch's side of the benchmarks: the same model and step, in eager mode or compiled in one process, or as DTensor over Gloo.

    peers.py eager [bf16]          one process; bf16 with fp32 master weights
    peers.py compiled [bf16]       the same with torch.compile, whose first steps compile for a minute
    peers.py optimizer [bf16]      what follows backward: norm, clip, fused AdamW, the copy to bf16, zeroing
    peers.py dtensor               one rank, given by RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    peers.py ddp|fsdp [bf16]       such a rank, with its part of the sequences: DistributedDataParallel, or fully_shard (FSDP2) of every
                                   block; bf16 by autocast or by fully_shard's policy, with fp32 weights and reductions of fp32
    peers.py mlp fp32|bf16         the gated MLP, one process

Implements the protocol of worker.h: reads a number of steps, prints their seconds.
"""

import dataclasses
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn



@dataclasses.dataclass
class Shape:
    """The shape of a Llama and its batch."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    length: int
    batch: int

    @property
    def head_dim(self):
        return self.hidden // self.heads

    def text(self):
        return (f"hidden {self.hidden}, {self.layers} layers, {self.heads} heads, {self.kv_heads} KV heads, ffn {self.ffn}, "
                f"vocab {self.vocab}, s {self.length}, b {self.batch}, fp32")


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TRAIN_STEP = Shape(hidden=512, layers=8, heads=8, kv_heads=4, ffn=1376, vocab=32000, length=256, batch=4)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def rotary_tables(shape):
    inverse = 1.0 / 10000 ** (torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.outer(torch.arange(shape.length).float(), inverse).repeat(1, 2)
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.head_dim, self.is_grouped = shape.head_dim, shape.kv_heads < shape.heads
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x, cos, sin):
        b, s = x.shape[:2]
        q, k, v = (proj(x).view(b, s, -1, self.head_dim).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        out = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True,
                                             enable_gqa=self.is_grouped)
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
    def __init__(self, shape):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(shape.hidden, eps=1e-6), nn.RMSNorm(shape.hidden, eps=1e-6)
        self.attention, self.mlp = Attention(shape), Mlp(shape.hidden, shape.ffn)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids, cos, sin):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def tensor_parallel(model, mesh, is_sequence_parallel=True, is_loss_parallel=True):
    """Applies PyTorch's parallelize_module plan for Llama, with vocabulary-parallel loss or with gathered logits."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    between = Shard(1) if is_sequence_parallel else Replicate()  # placement of the residual stream
    logits = Shard(-1) if is_loss_parallel else Replicate()
    outside = {"embedding": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
               "head": tp.ColwiseParallel(input_layouts=between, output_layouts=logits, use_local_output=not is_loss_parallel)}
    plan = {name: tp.RowwiseParallel(output_layouts=between) for name in ("attention.o_proj", "mlp.down_proj")}
    plan |= {name: tp.ColwiseParallel() for name in ("attention.q_proj", "attention.k_proj", "attention.v_proj",
                                                     "mlp.gate_proj", "mlp.up_proj")}
    if is_sequence_parallel:
        gather = tp.PrepareModuleInput
        outside["norm"] = tp.SequenceParallel()
        plan |= {"norm1": tp.SequenceParallel(), "norm2": tp.SequenceParallel(),
                 "attention": gather(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)),
                 "mlp": gather(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))}
    tp.parallelize_module(model, mesh, outside)
    for block in model.blocks:
        tp.parallelize_module(block, mesh, plan)
    return model


def batch_of(shape):
    """Returns ids and rotary tables."""
    ids = torch.randint(0, shape.vocab, (shape.batch, shape.length), generator=torch.Generator().manual_seed(7))
    return ids, *rotary_tables(shape)


class MasterWeights:
    """fp32 copies of a bf16 model's parameters, as every recipe for training in bf16 keeps them."""

    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.masters = [parameter.detach().float() for parameter in self.parameters]
        for master in self.masters:
            master.grad = torch.zeros_like(master)

    def take_gradients(self):
        torch._foreach_copy_([master.grad for master in self.masters], [parameter.grad for parameter in self.parameters])

    def write_back(self):
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)


def fused_adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def train_step_bf16(model):
    ids, cos, sin = batch_of(TRAIN_STEP)
    cos, sin = cos.bfloat16(), sin.bfloat16()
    weights = MasterWeights(model)
    optimizer = fused_adamw(weights.masters)

    def step():
        model.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(ids, cos, sin).flatten(0, 1), ids.flatten())
        loss.backward()
        weights.take_gradients()
        torch.nn.utils.clip_grad_norm_(weights.masters, 1.0)
        optimizer.step()
        weights.write_back()
        return loss

    return step


def optimizer_step(model, is_bf16):
    """The gradients are zero: only the time counts."""
    weights = MasterWeights(model) if is_bf16 else None
    masters = weights.masters if is_bf16 else list(model.parameters())
    optimizer = fused_adamw(masters)
    for master in masters:
        master.grad = torch.zeros_like(master)

    def step():
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        if is_bf16:
            weights.write_back()
        optimizer.zero_grad(set_to_none=False)

    return step


def clipped_step(model, optimizer, backward):
    """Returns a step; `backward` computes the gradients and returns the loss."""
    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def train_step(model, is_parallel):
    ids, cos, sin = batch_of(TRAIN_STEP)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=not is_parallel,
                                  foreach=is_parallel)

    def backward():
        if is_parallel:
            from torch.distributed.tensor.parallel import loss_parallel
            with loss_parallel():
                loss = F.cross_entropy(model(ids, cos, sin).flatten(0, 1), ids.flatten())
                loss.backward()
        else:
            loss = F.cross_entropy(model(ids, cos, sin).flatten(0, 1), ids.flatten())
            loss.backward()
        return loss

    return clipped_step(model, optimizer, backward)


def data_parallel(kind, model, is_bf16):
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if is_bf16 else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def data_parallel_step(kind, is_bf16):
    """Averages over ranks with equal numbers of tokens, which is the mean over the batch of the other steps."""
    ids, cos, sin = batch_of(TRAIN_STEP)
    ids = ids.chunk(dist.get_world_size())[dist.get_rank()]
    model = data_parallel(kind, Llama(TRAIN_STEP), is_bf16)
    if kind == "fsdp" and is_bf16:
        cos, sin = cos.bfloat16(), sin.bfloat16()

    def backward():
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16 and kind == "ddp"):
            loss = F.cross_entropy(model(ids, cos, sin).flatten(0, 1), ids.flatten())
        loss.backward()
        return loss

    return clipped_step(model, fused_adamw(model.parameters()), backward)


def mlp_step(dtype):
    model = Mlp(4096, 11008).to(dtype)
    x = torch.randn(16, 128, 4096, dtype=dtype, requires_grad=True)
    y_gradient = torch.randn(16, 128, 4096, dtype=dtype)

    def step():
        x.grad = None
        model(x).backward(y_gradient)

    return step


class Loss:
    """Head and loss of 4096 tokens of Llama-3.2-1B's width. Its memory is what a step needs beside x, weight and gradients."""

    def __init__(self, dtype):
        self.x = torch.randn(4096, 2048, dtype=dtype, requires_grad=True)
        self.weight = torch.empty(128256, 2048, dtype=dtype).normal_(std=0.02).requires_grad_()
        self.labels = torch.randint(0, 128256, (4096,), generator=torch.Generator().manual_seed(7))
        self.step()
        self.resident = resident_bytes("VmRSS")

    def step(self):
        self.x.grad = self.weight.grad = None
        F.cross_entropy(F.linear(self.x, self.weight), self.labels).backward()

    def figures(self):
        return {"peak_bytes": resident_bytes("VmHWM") - self.resident}


def resident_bytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def serve(step, figures=dict):
    for line in sys.stdin:
        if dist.is_initialized():
            dist.barrier()
        begin = time.perf_counter()
        for _ in range(int(line)):
            step()
        if dist.is_initialized():
            dist.barrier()
        print(json.dumps({"seconds": time.perf_counter() - begin} | figures()), flush=True)


def main():
    torch.manual_seed(1)
    kind = sys.argv[1]
    threads = int(os.environ["SHARDWISE_THREADS"])
    torch.set_num_threads(threads)
    if kind in ("dtensor", "ddp", "fsdp"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["RANK"])]})
        dist.init_process_group("gloo")
        if kind == "dtensor":
            mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
            serve(train_step(tensor_parallel(Llama(TRAIN_STEP), mesh), is_parallel=True))
        else:
            before = resident_bytes("VmRSS")
            serve(data_parallel_step(kind, is_bf16=sys.argv[2:] == ["bf16"]),
                  lambda: {"resident_bytes": resident_bytes("VmHWM") - before})
        dist.destroy_process_group()
    elif kind in ("eager", "compiled", "optimizer"):
        is_bf16 = sys.argv[2:] == ["bf16"]
        model = Llama(TRAIN_STEP).to(torch.bfloat16 if is_bf16 else torch.float32)
        if kind == "compiled":
            model.compile()
        if kind == "optimizer":
            serve(optimizer_step(model, is_bf16))
        else:
            serve(train_step_bf16(model) if is_bf16 else train_step(model, is_parallel=False))
    elif kind == "linear_cross_entropy":
        loss = Loss(DTYPES[sys.argv[2]])
        serve(loss.step, loss.figures)
    else:
        serve(mlp_step(DTYPES[sys.argv[2]]))


if __name__ == "__main__":
    main()
