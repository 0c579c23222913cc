"""The kernels that gpu_kernels.py times, each with its peers, at one shape."""

import dataclasses
from typing import Callable

import torch
import torch.nn.functional as F

import gpu_triton
from gpu_library import Long

EPS = 1e-5
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
GROUP = 128


@dataclasses.dataclass
class Case:
    """A kernel at one shape. `make` returns its tensors; `ours` and the peers return their outputs."""

    name: str
    shape: str
    bytes: int  # read and written
    make: Callable
    ours: Callable
    torch: Callable | None = None
    triton: Callable | None = None
    tolerance: float = 2**-7  # of a bf16 result, relative to the largest value
    result: Callable | None = None  # of `ours`, once it has ended; None: its outputs
    is_timed_alone: bool = False  # PyTorch has no kernel for it: its result is only compared


def bf16(*shape, device, scale=1.0):
    return (torch.randn(*shape, device=device) * scale).to(torch.bfloat16)


def norm_cases(lib, device, blocks, rows, h):
    shape, numbers = f"{rows} x {h}", rows * h

    def make():
        x, dy, weight, bias = (bf16(*s, device=device) for s in ((rows, h), (rows, h), (h,), (h,)))
        wide = x.float()
        return {"x": x, "dy": dy, "weight": weight, "bias": bias, "y": torch.empty_like(x),
                "residual": torch.empty_like(x),
                "mean": wide.mean(-1), "rms": (wide.square().mean(-1) + EPS).rsqrt(),
                "rstd": (wide.var(-1, correction=0) + EPS).rsqrt(),
                "sums": torch.zeros(2, h, device=device), "partial": torch.empty(2 * blocks * h, device=device)}

    def rms(t):
        lib.call("bench_rms_norm", t["y"], t["rms"], t["x"], t["weight"], Long(rows), h)
        return [t["y"]]

    def rms_backward(t):
        lib.call("bench_rms_norm_backward", t["y"], t["sums"], t["partial"], t["dy"], t["x"], t["weight"], t["rms"],
                 Long(rows), h, blocks)
        return [t["y"]]

    # On a GPU PyTorch has a kernel for each; on the CPU they take no statistics in fp32.
    def torch_rms_backward(t):
        if device == "cuda":
            return list(torch.ops.aten._fused_rms_norm_backward(
                t["dy"], t["x"], [h], t["rms"][:, None], t["weight"], [True, True]))
        scaled, normal = t["dy"].float() * t["weight"].float(), t["x"].float() * t["rms"][:, None]
        dx = (scaled - normal * (scaled * normal).mean(-1, keepdim=True)) * t["rms"][:, None]
        return [dx.to(torch.bfloat16), (t["dy"].float() * normal).sum(0)]

    def add_rms(t):
        lib.call("bench_add_rms_norm", t["residual"], t["y"], t["rms"], t["x"], t["dy"], t["weight"], Long(rows), h)
        return [t["residual"], t["y"]]

    def torch_add_rms(t):
        residual = t["x"] + t["dy"]
        return [residual, F.rms_norm(residual, (h,), t["weight"], EPS)]

    def layer(t):
        lib.call("bench_layer_norm", t["y"], t["mean"], t["rstd"], t["x"], t["weight"], t["bias"], Long(rows), h)
        return [t["y"]]

    def layer_backward(t):
        lib.call("bench_layer_norm_backward", t["y"], t["sums"][0], t["sums"][1], t["partial"], t["dy"], t["x"],
                 t["weight"], t["mean"], t["rstd"], Long(rows), h, blocks)
        return [t["y"]]

    def torch_layer_backward(t):
        if device == "cpu":
            scaled, normal = t["dy"].float() * t["weight"].float(), (t["x"].float() - t["mean"][:, None]) * t["rstd"][:, None]
            means = scaled.mean(-1, keepdim=True) + normal * (scaled * normal).mean(-1, keepdim=True)
            return [((scaled - means) * t["rstd"][:, None]).to(torch.bfloat16)]
        return [torch.ops.aten.native_layer_norm_backward(
            t["dy"], t["x"], [h], t["mean"][:, None], t["rstd"][:, None], t["weight"], t["bias"],
            [True, True, True])[0]]

    return [
        Case("RMSNorm", shape, 4 * numbers, make, rms, lambda t: [F.rms_norm(t["x"], (h,), t["weight"], EPS)],
             lambda t: [gpu_triton.rms_norm(t["x"], t["weight"], EPS)]),
        Case("residual + RMSNorm", shape, 8 * numbers, make, add_rms, torch_add_rms),
        Case("RMSNorm backward", shape, 6 * numbers, make, rms_backward, torch_rms_backward),
        Case("LayerNorm", shape, 4 * numbers, make, layer,
             lambda t: [F.layer_norm(t["x"], (h,), t["weight"], t["bias"], EPS)]),
        Case("LayerNorm backward", shape, 6 * numbers, make, layer_backward, torch_layer_backward),
    ]


def activation_cases(lib, device, blocks, rows, f):
    shape, numbers = f"{rows} x {f}", rows * f

    def make():
        return {"gate_up": bf16(rows, 2 * f, device=device), "dy": bf16(rows, f, device=device),
                "x": bf16(rows, f, device=device), "bias": bf16(f, device=device),
                "y": torch.empty(rows, f, dtype=torch.bfloat16, device=device),
                "d_gate_up": torch.empty(rows, 2 * f, dtype=torch.bfloat16, device=device),
                "sums": torch.zeros(f, device=device), "partial": torch.empty(blocks * f, device=device)}

    def swiglu(t):
        lib.call("bench_swiglu", t["y"], t["gate_up"], Long(rows), f)
        return [t["y"]]

    def torch_swiglu(t):
        gate, up = t["gate_up"].chunk(2, -1)
        return [F.silu(gate) * up]

    def swiglu_backward(t):
        lib.call("bench_swiglu_backward", t["d_gate_up"], t["dy"], t["gate_up"], Long(rows), f)
        return [t["d_gate_up"]]

    def torch_swiglu_backward(t):
        gate, up = t["gate_up"].chunk(2, -1)
        return [torch.cat([torch.ops.aten.silu_backward(t["dy"] * up, gate), t["dy"] * F.silu(gate)], -1)]

    def gelu(t):
        lib.call("bench_bias_gelu", t["y"], t["x"], t["bias"], Long(rows), f)
        return [t["y"]]

    def gelu_backward(t):
        lib.call("bench_bias_gelu_backward", t["y"], t["sums"], t["partial"], t["dy"], t["x"], t["bias"], Long(rows), f,
                 blocks)
        return [t["y"]]

    def torch_gelu_backward(t):
        dx = torch.ops.aten.gelu_backward(t["dy"], t["x"] + t["bias"], approximate="tanh")
        return [dx, dx.sum(0)]

    return [
        Case("SwiGLU", shape, 6 * numbers, make, swiglu, torch_swiglu, lambda t: [gpu_triton.swiglu(t["gate_up"])]),
        Case("SwiGLU backward", shape, 10 * numbers, make, swiglu_backward, torch_swiglu_backward),
        Case("bias+GeLU", shape, 4 * numbers, make, gelu,
             lambda t: [F.gelu(t["x"] + t["bias"], approximate="tanh")],
             lambda t: [gpu_triton.bias_gelu(t["x"], t["bias"])]),
        Case("bias+GeLU backward", shape, 6 * numbers, make, gelu_backward, torch_gelu_backward),
    ]


def rotary_case(lib, device, s):
    b, features = 1, (HEADS + 2 * KV_HEADS) * HEAD_DIM

    def make():
        angle = torch.arange(s, device=device)[:, None] * torch.rand(HEAD_DIM // 2, device=device)
        heads = {name: torch.empty(b, count, s, HEAD_DIM, dtype=torch.bfloat16, device=device)
                 for name, count in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))}
        return {"qkv": bf16(s, b, features, device=device), "cos": angle.cos(), "sin": angle.sin(), **heads}

    def ours(t):
        lib.call("bench_rotary", t["q"], t["k"], t["v"], t["qkv"], t["cos"], t["sin"], Long(s), b, HEADS, KV_HEADS,
                 HEAD_DIM)
        return [t["q"], t["k"], t["v"]]

    def rotated(x, cos, sin):
        first, second = x.float().chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

    def peer(t):
        q, k, v = (part.view(s, b, -1, HEAD_DIM).permute(1, 2, 0, 3) for part in t["qkv"].split(
            [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], -1))
        return [rotated(q, t["cos"], t["sin"]), rotated(k, t["cos"], t["sin"]), v.contiguous()]

    return Case("rotary, split", f"{s} x {HEADS}+2·{KV_HEADS} x {HEAD_DIM}", 4 * s * features, make, ours, peer)


def vocabulary_cases(lib, device, n, v, h):
    def make_embedding():
        return {"ids": torch.randint(0, v, (n,), device=device), "table": bf16(v, h, device=device),
                "y": torch.empty(n, h, dtype=torch.bfloat16, device=device)}

    def embedding(t):
        lib.call("bench_embedding", t["y"], t["ids"], t["table"], Long(n), v, h)
        return [t["y"]]

    def make_logits():
        logits, labels = bf16(n, v, device=device), torch.randint(0, v, (n,), device=device)
        return {"logits": logits, "labels": labels, "lse": logits.float().logsumexp(-1),
                "terms": torch.empty(3, n, device=device), "sums": torch.empty(n, device=device)}

    def loss(t):
        lib.call("bench_cross_entropy", t["sums"], t["terms"], t["logits"], t["labels"], Long(n), v)
        return [t["sums"]]

    def losses(t):
        return [t["terms"][0] + t["sums"] - t["terms"][2]]

    def backward(t):
        lib.call("bench_cross_entropy_backward", t["logits"], t["labels"], t["lse"], Long(n), v)
        return [t["logits"]]

    def torch_backward(t):
        p = (t["logits"].float() - t["lse"][:, None]).exp()
        return [p.scatter_add_(1, t["labels"][:, None], torch.full_like(t["lse"], -1.0)[:, None]).to(torch.bfloat16)]

    return [
        Case("embedding", f"{n} of {v} x {h}", 4 * n * h, make_embedding, embedding,
             lambda t: [F.embedding(t["ids"], t["table"])]),
        Case("cross-entropy", f"{n} x {v}", 2 * n * v, make_logits, loss,
             lambda t: [F.cross_entropy(t["logits"].float(), t["labels"], reduction="none")], result=losses),
        Case("cross-entropy backward", f"{n} x {v}", 4 * n * v, make_logits, backward, torch_backward),
    ]


def cached_attention_case(lib, device, n, length):
    def make():
        heads = {name: bf16(n, count, 1, HEAD_DIM, device=device) for name, count in
                 (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))}
        keys, values = (bf16(n, KV_HEADS, length, HEAD_DIM, device=device) for _ in range(2))
        keys[:, :, -1:], values[:, :, -1:] = heads["k"], heads["v"]
        return {**heads, "keys": keys, "values": values, "sequences": lib.cached_sequences(keys, values),
                "workspace": lib.attention_workspace(n, HEADS, HEAD_DIM, length, device),
                "out": torch.empty(n, HEADS, 1, HEAD_DIM, dtype=torch.bfloat16, device=device)}

    def ours(t):
        lib.call("bench_cached_attention", t["out"], t["workspace"], t["q"], t["k"], t["v"], t["sequences"], n, HEADS,
                 KV_HEADS, HEAD_DIM, Long(length))
        return [t["out"]]

    return Case("attention to caches", f"{n} x {length} x {KV_HEADS} x {HEAD_DIM}", 4 * n * length * KV_HEADS * HEAD_DIM, make,
                ours, lambda t: [F.scaled_dot_product_attention(t["q"], t["keys"], t["values"], enable_gqa=True)])


def adamw_case(lib, device, n):
    def make():
        tensors = {name: torch.randn(n, device=device) for name in ("weights", "gradient", "average", "square")}
        tensors["square"].square_()
        tensors["copies"] = {name: one.clone() for name, one in tensors.items()}
        tensors["tensor"], tensors["chunks"] = lib.adamw_tensor(
            *(tensors[name] for name in ("weights", "gradient", "average", "square")))
        tensors["first"] = torch.tensor([0, tensors["chunks"]], device=device)
        tensors["step"] = torch.tensor(1000.0, device=device)
        return tensors

    def ours(t):
        lib.call("bench_adamw", t["tensor"], t["first"], Long(t["chunks"]))
        return [t["weights"]]

    def peer(t):
        copies = t["copies"]
        copies["average"].lerp_(copies["gradient"], 0.1)
        copies["square"].mul_(0.999).addcmul_(copies["gradient"], copies["gradient"], value=0.001)
        denominator = copies["square"].sqrt() * 31.622776 + 1e-8
        copies["weights"].addcdiv_(copies["average"], denominator, value=-1e-3 / 0.1)
        return [copies["weights"]]

    return Case("AdamW", f"{n}", 28 * n, make, ours, peer, tolerance=1e-5)


def product_cases(lib, device, n, k):
    def make():
        return {"x": bf16(1, k, device=device), "w": bf16(n, k, device=device, scale=k**-0.5),
                "y": torch.empty(1, n, dtype=torch.bfloat16, device=device)}

    def ours(t):
        lib.call("bench_row_product", t["y"], t["x"], t["w"], Long(1), n, k)
        return [t["y"]]

    return [Case("row product, bf16", f"{n} x {k}", 2 * n * k, make, ours, lambda t: [t["x"] @ t["w"].T]),
            quantized_case(lib, device, n, k, 8), quantized_case(lib, device, n, k, 4)]


def quantized_case(lib, device, n, k, bits):
    def make():
        low, high, words = -(1 << 31), 1 << 31, k * bits // 32
        return {"x": bf16(1, k, device=device),
                "qweight": torch.randint(low, high, (n, words), dtype=torch.int32, device=device),
                "scales": (torch.rand(n, k // GROUP, device=device) / 128).half().float(),
                "y": torch.empty(1, n, dtype=torch.bfloat16, device=device)}

    def ours(t):
        lib.call("bench_quantized_row_product", t["y"], t["x"], t["qweight"], t["scales"], Long(1), n, k, bits, GROUP)
        return [t["y"]]

    def peer(t):
        shifts = torch.arange(0, 32, bits, device=device)
        values = (t["qweight"][:, :, None] >> shifts & (1 << bits) - 1).view(n, k // GROUP, GROUP) - (1 << bits - 1)
        return [(t["x"].float() @ (values * t["scales"][:, :, None]).view(n, k).T).to(torch.bfloat16)]

    return Case(f"row product, int{bits}", f"{n} x {k}", n * k * bits // 8 + 4 * n * k // GROUP, make, ours, peer,
                is_timed_alone=True)


def cases_of(lib, device, is_small):
    blocks = 3 if is_small else 2 * torch.cuda.get_device_properties(0).multi_processor_count
    if is_small:
        return [*norm_cases(lib, device, blocks, 5, 64), *activation_cases(lib, device, blocks, 5, 72),
                rotary_case(lib, device, 3), *vocabulary_cases(lib, device, 5, 300, 64), cached_attention_case(lib, device, 2, 200),
                adamw_case(lib, device, 5000), *product_cases(lib, device, 33, 256)]
    return [*norm_cases(lib, device, blocks, 8192, 4096), *activation_cases(lib, device, blocks, 4096, 14336),
            rotary_case(lib, device, 8192), *vocabulary_cases(lib, device, 4096, 128256, 4096), cached_attention_case(lib, device, 16, 8192),
            adamw_case(lib, device, 1 << 26),
            *product_cases(lib, device, 28672, 4096), *product_cases(lib, device, 128256, 4096)]
