"""Compares GPU kernels with PyTorch, torch.compile and Triton, and with copying memory, in one interleaved run.

    python3 benchmarks/gpu_kernels.py --library build/gpu_bench.so [--rounds N] [--json]
    .venv-test/bin/python benchmarks/gpu_kernels.py --library build/gpu_bench_emulated.so --check

Every round runs each kernel, its peers and a copy of as many bytes once, over buffers that together exceed the GPU's cache. A
time is the median over rounds; a ratio compares medians of the same rounds. Before it is timed, each result is compared with
PyTorch's. --check only does that, on small shapes, by a library of the emulator if there is no GPU.
"""

import argparse
import ctypes
import dataclasses
import json
import statistics
import sys
from typing import Callable

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("gpu_kernels: needs Python's torch; got none")

import gpu_triton

EPS = 1e-5
TOTAL_BYTES = 256 << 20  # of the buffers that a kernel goes through: several times an H200's cache
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
    is_timed_alone: bool = False  # PyTorch has no kernel for it: its result is only compared


class Library:
    """The C functions of benchmarks/gpu/kernels.cpp. Tensors are passed as pointers, the stream last."""

    def __init__(self, path, device):
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            sys.exit(f"gpu_kernels: --library must be gpu_bench.so or gpu_bench_emulated.so of the build; got {error}")
        self._is_cuda = device == "cuda"

    def call(self, name, *arguments):
        stream = torch.cuda.current_stream().cuda_stream if self._is_cuda else None
        getattr(self._library, name)(*[_as_c(argument) for argument in arguments], ctypes.c_void_p(stream))

    def wait(self):
        if self._is_cuda:
            torch.cuda.synchronize()
        else:
            self._library.cudaDeviceSynchronize()

    def adamw_tensor(self, *tensors):
        """Returns what bench_adamw reads, on the tensors' device, and the number of chunks."""
        host = torch.empty(self._library.bench_adamw_bytes(), dtype=torch.uint8)
        function = self._library.bench_adamw_tensor
        function.restype = ctypes.c_int64
        chunks = function(*[_as_c(one) for one in (host, *tensors)], ctypes.c_int64(tensors[0].numel()))
        return host.to(tensors[0].device), chunks


def _as_c(argument):
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, Long):
        return ctypes.c_int64(argument)
    return ctypes.c_int(argument)


class Long(int):
    """An argument of 64 bits."""


def bf16(*shape, device, scale=1.0):
    return (torch.randn(*shape, device=device) * scale).to(torch.bfloat16)


def norm_cases(lib, device, blocks, rows, h):
    shape, numbers = f"{rows} x {h}", rows * h

    def make():
        x, dy, weight, bias = (bf16(*s, device=device) for s in ((rows, h), (rows, h), (h,), (h,)))
        wide = x.float()
        return {"x": x, "dy": dy, "weight": weight, "bias": bias, "y": torch.empty_like(x),
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
                rotary_case(lib, device, 3), adamw_case(lib, device, 5000), *product_cases(lib, device, 33, 256)]
    return [*norm_cases(lib, device, blocks, 8192, 4096), *activation_cases(lib, device, blocks, 4096, 14336),
            rotary_case(lib, device, 8192), adamw_case(lib, device, 1 << 26),
            *product_cases(lib, device, 28672, 4096), *product_cases(lib, device, 128256, 4096)]


def check(case, lib):
    """Compares the case's results with PyTorch's, and Triton's. Raises SystemExit if they differ."""
    tensors = case.make()
    expected = case.torch(tensors)
    actual = [("shardwise", case.ours(tensors))]
    lib.wait()
    if case.triton and gpu_triton.is_available:
        actual.append(("triton", case.triton(tensors)))
    for who, outputs in actual:
        for output, reference in zip(outputs, expected):
            error = (output.float() - reference.float()).abs().max().item() / reference.float().abs().max().item()
            if not error <= case.tolerance:
                sys.exit(f"gpu_kernels: {case.name}: {who} must be within {case.tolerance:.1e} of PyTorch; got {error:.1e}")


def time_of(run, sets):
    """Returns the seconds of a call, over all buffers one after the other."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for tensors in sets:
        run(tensors)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / len(sets)


def measure(case, rounds):
    """Returns the median seconds of a copy of as many bytes, of the kernel and of its peers."""
    sets = [case.make() for _ in range(max(1, -(-TOTAL_BYTES // case.bytes)))]
    halves = [(torch.empty(case.bytes // 2, dtype=torch.uint8, device="cuda"),
               torch.empty(case.bytes // 2, dtype=torch.uint8, device="cuda")) for _ in sets]
    runs = {"copy": (lambda pair: pair[0].copy_(pair[1]), halves), "shardwise": (case.ours, sets)}
    if not case.is_timed_alone:
        runs |= {"torch": (case.torch, sets), "compiled": (torch.compile(case.torch), sets)}
    if case.triton and gpu_triton.is_available:
        runs["triton"] = (case.triton, sets)
    for run, over in runs.values():
        time_of(run, over)  # compiles, and fills caches of code
    seconds = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (run, over) in runs.items():
            seconds[name].append(time_of(run, over))
    return {name: statistics.median(times) for name, times in seconds.items()}


def row_of(case, seconds):
    ours = seconds["shardwise"]
    return {"kernel": case.name, "shape": case.shape, "MB": case.bytes / 1e6, "microseconds": ours * 1e6,
            "GB/s": case.bytes / ours / 1e9, "of copy": seconds["copy"] / ours,
            **{f"{name} / ours": time / ours for name, time in seconds.items() if name not in ("copy", "shardwise")}}


def table(rows):
    columns = ["kernel", "shape", "MB", "microseconds", "GB/s", "of copy", "torch / ours", "compiled / ours",
               "triton / ours"]

    def text(value):
        return "" if value is None else value if isinstance(value, str) else f"{value:.3g}"

    lines = [columns, ["---"] * len(columns), *([text(row.get(column)) for column in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="gpu_bench.so or gpu_bench_emulated.so of the build")
    parser.add_argument("--rounds", type=int, default=20, help="how often each is timed [20]")
    parser.add_argument("--check", action="store_true", help="compare results on small shapes and time nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    if options.rounds < 1:
        sys.exit(f"gpu_kernels: --rounds must be at least 1; got {options.rounds}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.check:
        sys.exit("gpu_kernels: needs a GPU; got none")
    torch.manual_seed(1)
    lib = Library(options.library, device)
    cases = cases_of(lib, device, is_small=options.check)
    rows = []
    for case in cases:
        check(case, lib)
        if not options.check:
            print(f"gpu_kernels: {case.name}, {case.shape}", file=sys.stderr)
            rows.append(row_of(case, measure(case, options.rounds)))
            torch.cuda.empty_cache()
    if options.check:
        print(f"gpu_kernels: {len(cases)} kernels give what PyTorch gives")
    elif options.json:
        print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}))
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.rounds} rounds\n\n{table(rows)}")


if __name__ == "__main__":
    main()
