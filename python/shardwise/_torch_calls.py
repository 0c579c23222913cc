"""Calls of torch.distributed that torch 2.11 restricts to the backends that it knows by name.

After `register` they accept groups of shardwise too; for all other groups torch's functions run unchanged.
"""
from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import Backend

_CPU = torch.device("cpu")
_UNKNOWN = "custom"  # what torch calls a backend that it does not know, and a group whose default backend it is


def _or_default(group: Any) -> Any:
    return distributed_c10d._get_default_group() if group is None else group


def _is_shardwise(backend: Backend) -> bool:
    try:
        return backend.name() == "shardwise"
    except RuntimeError:  # torch lets a backend have no name
        return False


def _backend_of(group: Any) -> Backend | None:
    """Returns the backend of `group` if it is shardwise's."""
    if not isinstance(group, dist.ProcessGroup) or _CPU not in group._device_types:
        return None
    backend = group._get_backend(_CPU)
    return backend if _is_shardwise(backend) else None


def _monitored_barrier(original: Callable[..., None], group: dist.ProcessGroup | None = None,
                       timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
    chosen = _or_default(group)
    if _backend_of(chosen) is None:
        return original(group, timeout, wait_all_ranks)
    if isinstance(timeout, float):  # seconds, which torch accepts too
        timeout = timedelta(seconds=timeout)
    limit = {} if timeout is None else {"timeout": timeout}  # else the group's
    chosen.monitored_barrier(**limit, wait_all_ranks=wait_all_ranks)


def _set_pg_timeout(original: Callable[..., None], timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
    chosen = _or_default(group)
    backend = _backend_of(chosen)
    if backend is not None:
        backend.set_timeout(timeout)
        if chosen._device_types == [_CPU]:
            return  # torch would warn that it has set nothing
    original(timeout, group)


def _sequence_call(original: Callable[..., Any], group: dist.ProcessGroup) -> Any:
    backend = _backend_of(group) if group.name() == _UNKNOWN else None
    return original(group) if backend is None else getattr(backend, original.__name__)()


def _ddp_logging_data(original: Callable[..., dict[str, Any]], model: DistributedDataParallel) -> dict[str, Any]:
    data = original(model)
    if data.get("backend_name") == _UNKNOWN and _backend_of(model.process_group) is not None:
        data["backend_name"] = "shardwise"
    return data


def _replace(owners: list[Any], name: str, call: Callable[..., Any]) -> None:
    """Replaces a function of torch by `call`, whose first argument is that function."""
    original = getattr(owners[0], name)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return call(original, *args, **kwargs)

    for owner in owners:
        setattr(owner, name, replacement)


@functools.cache  # the import of shardwise.torch calls it, then torch, whose entry point calls it again
def register() -> None:
    """Lets torch's calls accept groups of shardwise."""
    from shardwise import _C

    _replace([distributed_c10d, dist], "monitored_barrier", _monitored_barrier)
    _replace([distributed_c10d], "_set_pg_timeout", _set_pg_timeout)
    for name in ("_get_sequence_number_for_group", "_set_sequence_number_for_group"):
        _replace([dist.ProcessGroup], name, _sequence_call)
    _replace([DistributedDataParallel], "_get_ddp_logging_data", _ddp_logging_data)

    def options(backend: Backend) -> Backend.Options:  # torch's backends have their own
        if not _is_shardwise(backend):
            raise AttributeError("options")
        return _C.backend_options(backend)

    setattr(torch._C._distributed_c10d.Backend, "options", property(options))
