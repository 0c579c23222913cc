"""The backend "shardwise" of torch.distributed: processes of one host, CPU tensors, shared memory.

    import shardwise.torch  # not needed where the package is installed: torch then finds it by itself
    torch.distributed.init_process_group("shardwise")

Collectives return when they are done, with async_op=True too: its handle and future are complete then, and ranks that
start several calls must start them in one order. All ranks get the same bits; the calls of one group come from one thread
at a time. A rank that dies, leaves or calls something else is a torch.distributed.DistBackendError on the others, which
names it: of the call, or with async_op=True of the handle's wait() and the future. dist.monitored_barrier takes gloo
alone, torch.distributed.group.WORLD.monitored_barrier() ours.

torch.distributed._symmetric_memory takes CPU tensors too: memory of a group that all of its ranks see where it lies.
"""
from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, Store

_TORCH = "2.11."  # c10d's C++ interface changes between minors


def _is_built_for_torch() -> bool:
    return torch.__version__.startswith(_TORCH)


def _create_backend(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
    if not _is_built_for_torch():
        raise ImportError(f"shardwise: torch must be {_TORCH}*, for which the package was built; got {torch.__version__}")
    from shardwise import _C

    return _C.create_backend(store, rank, size, timeout)


def register() -> None:
    """Makes the name known to torch.distributed. Importing this module does so; torch calls it by its entry point."""
    dist.Backend.register_backend("shardwise", _create_backend, devices=["cpu"])
    if _is_built_for_torch():  # where not, making a group says so
        from shardwise import _C

        _C.register_symmetric_memory()


register()
