// Which machine this process runs on, and with whom it can share memory there.
#pragma once
#include <cstdint>

namespace shardwise::comm {

/// Equal for processes of one running kernel: those who may share its processors.
uint64_t own_machine();

/// Equal for processes that comm/shm can join: those of one machine who see each other's abstract sockets
/// and process ids. Two containers of a machine mostly differ.
uint64_t own_node();

}  // namespace shardwise::comm
