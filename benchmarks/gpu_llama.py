"""Llama in plain PyTorch: the peer of gpu_model.py's training step."""

import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        h, f, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        self.heads, self.kv_heads, self.head_dim = config["num_attention_heads"], config["num_key_value_heads"], d
        self.norms = nn.ModuleList(nn.RMSNorm(h, config["rms_norm_eps"]) for _ in range(2))
        self.qkv = nn.Linear(h, (self.heads + 2 * self.kv_heads) * d, bias=False)
        self.out = nn.Linear(self.heads * d, h, bias=False)
        self.gate_up, self.down = nn.Linear(h, 2 * f, bias=False), nn.Linear(f, h, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        qkv = self.qkv(self.norms[0](x)).view(b, s, -1, self.head_dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, s, -1))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """Returns the mean loss of the next tokens of `ids` [b, s + 1]."""

    def __init__(self, config, seq_len):
        super().__init__()
        self.embedding = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        d = config["head_dim"]
        angles = torch.outer(torch.arange(seq_len).float(), config["rope_theta"] ** (-torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids):
        x = self.embedding(ids[:, :-1])
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def rotated(x, cos, sin):
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def seconds_of(run, device):
    """Returns how long a call takes, with what it queues."""
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def parameters(size):
    """Returns the number of weights."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in Llama(size.config, size.seq_len).parameters())


def step_seconds(size, device, compiled):
    """Trains with weights in fp32 and products in bf16 (autocast); returns the median seconds of a step."""
    torch.manual_seed(1)
    with torch.device(device):
        model = Llama(size.config, size.seq_len)
        ids = torch.randint(0, min(256, size.config["vocab_size"]), (size.batch, size.seq_len + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loss_of = torch.compile(model) if compiled else model

    def step():
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    seconds = [seconds_of(step, device) for _ in range(size.steps)]
    del model, optimizer
    if device == "cuda":
        torch.cuda.empty_cache()
    return statistics.median(seconds[size.steps // 3:])
