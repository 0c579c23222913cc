// Descriptors and what ranks send each other in words, for errors.
#pragma once
#include <string>

#include "shardwise/comm/shm/control.h"

namespace shardwise::comm::shm {

/// "all_reduce sum float32 [1024]", "broadcast int64 [3] root 0", "all_gather float32 [12] split 3f09…";
/// without a size where ranks know their own pieces alone, "scatter float32 root 1".
std::string describe(const Descriptor& descriptor);
/// "float32 [1024]".
std::string describe(int8_t dtype, int64_t numel);

}  // namespace shardwise::comm::shm
