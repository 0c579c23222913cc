// Counts the bytes requested for CPU tensors. The tests check memory formulas against this count.
//
// Replaces PyTorch's CPU allocator. Shared memory, mapped files and the C++ heap are not counted.
#pragma once
#include <cstdint>

namespace shardwise::base {

/// Replaces the CPU allocator by the counting allocator; further calls do nothing. Must be called before
/// other threads allocate tensors. Tensors that already exist are never counted. Cost: two atomic additions
/// and 80 bytes per allocation.
void install_memory_counter();

/// Configures malloc to keep freed memory for the next step's tensors instead of returning it to the system,
/// which would fault in every page again.
void keep_freed_memory();

/// Returns the bytes allocated now by all threads, or 0 if the counter is not installed.
int64_t live_bytes();
/// Returns the peak of live_bytes() since the start or the last reset_peak().
int64_t peak_bytes();
void reset_peak();

}  // namespace shardwise::base
