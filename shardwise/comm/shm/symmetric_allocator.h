// The symmetric heap as PyTorch's symmetric memory for the CPU: torch.distributed._symmetric_memory and
// c10d::symmetric_memory allocate from it and rendezvous over it (docs/adr/0018).
#pragma once
#include <c10/util/FunctionRef.h>

namespace shardwise::comm::shm {

/// Runs a call that may wait for peers, for programs that must release something meanwhile (Python's GIL).
using RunBlocking = void (*)(c10::function_ref<void()> wait);

/// Registers the allocator with c10d as "shardwise", and as the CPU's allocator unless the CPU already has
/// one. Groups are found by the name under which c10d registered them, and must use this backend. Only the
/// first call has an effect.
void register_symmetric_memory(RunBlocking run_blocking = [](c10::function_ref<void()> wait) { wait(); });

}  // namespace shardwise::comm::shm
