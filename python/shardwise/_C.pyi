from datetime import timedelta

from torch._C._distributed_c10d import Backend, Store

def create_backend(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
    """Returns the backend of the ranks that share `store`. Collective."""

def backend_options(backend: Backend) -> Backend.Options:
    """Returns a copy of the options of a backend: its name and timeout."""

def register_symmetric_memory() -> None:
    """Registers the symmetric heap with torch.distributed._symmetric_memory."""
