// The arena as PyTorch's symmetric memory for CPU: what torch.distributed._symmetric_memory and
// c10d::symmetric_memory allocate from and meet over (docs/adr/0018).
#pragma once
#include <c10/util/FunctionRef.h>

namespace shardwise::comm::shm {

/// Runs what may wait for peers; for programs that have to let go of something meanwhile.
using Waiting = void (*)(c10::function_ref<void()> wait);

/// Makes it known to c10d as "shardwise", and gives it the CPU unless something else has it already. Groups
/// are then found by the name under which c10d has registered them, and have to be of this backend. Only the
/// first call counts.
void register_symmetric_memory(Waiting waiting = [](c10::function_ref<void()> wait) { wait(); });

}  // namespace shardwise::comm::shm
