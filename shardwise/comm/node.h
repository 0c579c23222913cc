// Identifiers of the machine and of the shared-memory node that this process runs on.
#pragma once
#include <cstdint>

namespace shardwise::comm {

/// Returns an id that is equal for processes of one running kernel, whose ranks share its processors.
uint64_t machine_id();

/// Returns an id that is equal for processes that comm/shm can connect: processes of one machine that see
/// each other's abstract sockets and process ids. Two containers on one machine are usually two nodes.
uint64_t node_id();

}  // namespace shardwise::comm
