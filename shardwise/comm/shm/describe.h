// Descriptors in words, for errors.
#pragma once
#include <string>

#include "shardwise/comm/shm/control.h"

namespace shardwise::comm::shm {

/// "all_reduce sum float32 [1024]", "broadcast int64 [3] root 0", "all_gather float32 [12] split 3f09…".
std::string describe(const Descriptor& descriptor);

}  // namespace shardwise::comm::shm
