// Random numbers from the kernel, for names and secrets; philox.h has those of training.
#pragma once
#include <cstdint>

namespace shardwise::base {

/// Returns 64 bits that no other process gets. Errors: c10::Error if the kernel has no random numbers yet.
uint64_t random_bits();

}  // namespace shardwise::base
