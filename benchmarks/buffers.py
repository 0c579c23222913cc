"""Tensors of the Python candidates, in memory like shardwise's (shardwise/base/memory_counter.cpp)."""

import contextlib
import mmap

import torch

HUGE_PAGE = 2 * 2**20


def zeros(numel, dtype):
    """Returns zeros; requests huge pages for two huge pages and more, all before the first access."""
    size = numel * dtype.itemsize
    if size < 2 * HUGE_PAGE:
        return torch.zeros(numel, dtype=dtype)
    room = -(-size // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, room + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    flat = torch.frombuffer(memory, dtype=torch.uint8)  # keeps the memory alive
    begin = -flat.data_ptr() % HUGE_PAGE
    with contextlib.suppress(OSError):  # best effort
        memory.madvise(mmap.MADV_HUGEPAGE, begin, room)
    return flat[begin:begin + size].view(dtype)
