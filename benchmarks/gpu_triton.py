"""Kernels in Triton, peers of benchmarks/gpu_kernels.py. TRITON_INTERPRET=1 runs them on the CPU."""

import torch

try:
    import triton
    import triton.language as tl
    is_available = True
except ImportError:
    is_available = False

if is_available:
    @triton.jit
    def _rms_norm(y, x, weight, h, eps, BLOCK: tl.constexpr):
        row, columns = tl.program_id(0), tl.arange(0, BLOCK)
        is_inside = columns < h
        value = tl.load(x + row * h + columns, mask=is_inside, other=0.0).to(tl.float32)
        rstd = 1 / tl.sqrt(tl.sum(value * value, 0) / h + eps)
        scale = tl.load(weight + columns, mask=is_inside, other=0.0).to(tl.float32)
        tl.store(y + row * h + columns, (value * rstd * scale).to(tl.bfloat16), mask=is_inside)

    @triton.jit
    def _swiglu(y, gate_up, f, BLOCK: tl.constexpr):
        row, columns = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_inside = columns < f
        gate = tl.load(gate_up + row * 2 * f + columns, mask=is_inside, other=0.0).to(tl.float32)
        up = tl.load(gate_up + row * 2 * f + f + columns, mask=is_inside, other=0.0).to(tl.float32)
        tl.store(y + row * f + columns, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=is_inside)

    @triton.jit
    def _bias_gelu(y, x, bias, f, BLOCK: tl.constexpr):
        row, columns = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_inside = columns < f
        value = (tl.load(x + row * f + columns, mask=is_inside, other=0.0).to(tl.float32)
                 + tl.load(bias + columns, mask=is_inside, other=0.0).to(tl.float32))
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        result = value * tl.sigmoid(2 * inner)  # = value · (1 + tanh(inner)) / 2
        tl.store(y + row * f + columns, result.to(tl.bfloat16), mask=is_inside)


def rms_norm(x, weight, eps):
    y, (rows, h) = torch.empty_like(x), x.shape
    _rms_norm[(rows,)](y, x, weight, h, eps, BLOCK=triton.next_power_of_2(h))
    return y


def swiglu(gate_up):
    rows, f = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty(rows, f, dtype=gate_up.dtype, device=gate_up.device)
    _swiglu[(rows, triton.cdiv(f, 1024))](y, gate_up, f, BLOCK=1024)
    return y


def bias_gelu(x, bias):
    y, (rows, f) = torch.empty_like(x), x.shape
    _bias_gelu[(rows, triton.cdiv(f, 1024))](y, x, bias, f, BLOCK=1024)
    return y
