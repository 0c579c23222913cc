"""Tensors of the contenders in Python, in memory like that of ours in C++ (shardwise/base/memory_counter.cpp)."""

import contextlib
import mmap

import torch

HUGE_PAGE = 2 * 2**20


def zeros(numel, dtype):
    """From two huge pages on, huge pages are asked for, all of them before any is touched."""
    size = numel * dtype.itemsize
    if size < 2 * HUGE_PAGE:
        return torch.zeros(numel, dtype=dtype)
    room = -(-size // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, room + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    flat = torch.frombuffer(memory, dtype=torch.uint8)  # which keeps the memory
    begin = -flat.data_ptr() % HUGE_PAGE
    with contextlib.suppress(OSError):  # a wish that the system may leave unheard
        memory.madvise(mmap.MADV_HUGEPAGE, begin, room)
    return flat[begin:begin + size].view(dtype)
