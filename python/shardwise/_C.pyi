from datetime import timedelta

from torch._C._distributed_c10d import Backend, Store

def create_backend(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
    """Collective: the backend of the ranks that share `store`; returns when all have come."""

def register_symmetric_memory() -> None:
    """Offers the groups' memory to torch.distributed._symmetric_memory."""
