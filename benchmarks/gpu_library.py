"""The C functions of benchmarks/gpu/kernels.cpp, for gpu_cases.py."""

import ctypes
import sys

import torch


class Library:
    """The C functions of benchmarks/gpu/kernels.cpp. Tensors are passed as pointers, the stream last."""

    def __init__(self, path, device):
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            sys.exit(f"gpu_kernels: --library must be gpu_bench.so or gpu_bench_emulated.so of the build; got {error}")
        self._is_cuda = device == "cuda"
        for name in ("bench_adamw_tensor", "bench_adamw_bytes", "bench_attention_workspace", "bench_cached_sequence_bytes"):
            getattr(self._library, name).restype = ctypes.c_int64

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
        chunks = self._library.bench_adamw_tensor(*[_as_c(one) for one in (host, *tensors)], ctypes.c_int64(tensors[0].numel()))
        return host.to(tensors[0].device), chunks

    def cached_sequences(self, keys, values):
        """Returns what bench_cached_attention reads of caches [n, kv_heads, capacity, d], on their device."""
        n, _, capacity, _ = keys.shape
        host = torch.empty(n * self._library.bench_cached_sequence_bytes(), dtype=torch.uint8)
        self._library.bench_cached_sequences(*[_as_c(one) for one in (host, keys, values, Long(n), Long(keys[0].numel()),
                                                                       Long(capacity))])
        return host.to(keys.device)

    def attention_workspace(self, n, heads, d, capacity, device):
        size = self._library.bench_attention_workspace(n, heads, d, ctypes.c_int64(capacity))
        return torch.empty(max(16, size), dtype=torch.uint8, device=device)


def _as_c(argument):
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, Long):
        return ctypes.c_int64(argument)
    return ctypes.c_int(argument)


class Long(int):
    """An argument of 64 bits."""
