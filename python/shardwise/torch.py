"""The torch.distributed backend "shardwise": CPU tensors, shared memory, processes of one node.

    import shardwise.torch  # not needed if the package is installed: torch then imports it
    torch.distributed.init_process_group("shardwise")

Collectives are synchronous, also with async_op=True: the handle and the future are complete when the call returns, and all
ranks must start their calls in the same order. All ranks get the same bits. A call while another thread's call of the same
group is in flight, or in a forked child, raises a ValueError and sends nothing. If a rank dies, leaves or calls another
collective, the other ranks raise a torch.distributed.DistBackendError that names it: from the call, or with async_op=True
from the handle's wait() and the future.

torch restricts some calls to the backends that it knows by name; the import of this module lets them accept the groups of
shardwise: dist.monitored_barrier, _set_pg_timeout, a group's sequence numbers, a backend's `options`, and the name in DDP's
logging data.

torch.distributed._symmetric_memory supports CPU tensors too: all ranks of a group can read and write its memory in place.
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
    """Registers the backend with torch.distributed. The import of this module and torch's entry point call it."""
    dist.Backend.register_backend("shardwise", _create_backend, devices=["cpu"])
    if _is_built_for_torch():  # otherwise init_process_group raises an error
        from shardwise import _C, _torch_calls

        _C.register_symmetric_memory()
        _torch_calls.register()


register()
