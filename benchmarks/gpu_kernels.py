"""Compares GPU kernels with PyTorch, torch.compile and Triton, and with copying memory, in one interleaved run.

    python3 benchmarks/gpu_kernels.py --library build/gpu_bench.so [--rounds N] [--json]
    .venv-test/bin/python benchmarks/gpu_kernels.py --library build/gpu_bench_emulated.so --check

Every round runs each kernel, its peers and a copy of as many bytes once, over buffers that together exceed the GPU's cache. A
time is the median over rounds; a ratio compares medians of the same rounds. Before it is timed, each result is compared with
PyTorch's. --check only does that, on small shapes, by a library of the emulator if there is no GPU.
"""

import argparse
import json
import statistics
import sys

try:
    import torch
except ImportError:
    sys.exit("gpu_kernels: needs Python's torch; got none")

import gpu_triton
from gpu_cases import cases_of
from gpu_library import Library

TOTAL_BYTES = 256 << 20  # of the buffers that a kernel goes through: several times an H200's cache


def check(case, lib):
    """Compares the case's results with PyTorch's, and Triton's. Raises SystemExit if they differ."""
    tensors = case.make()
    expected = case.torch(tensors)
    outputs = case.ours(tensors)
    lib.wait()
    actual = [("shardwise", case.result(tensors) if case.result else outputs)]
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
