// How far ahead loops prefetch that read memory in order. No library header: isa sources include this.
#pragma once
#include <cstdint>

namespace shardwise::base {

/// Returns the distance in bytes that reads fastest on this processor.
int64_t prefetch_bytes();

}  // namespace shardwise::base
