// Counts the bytes that tensors on the CPU hold, as they were asked for: the figure memory formulas are
// checked with.
//
// Takes the place of PyTorch's CPU allocator. Shared memory, mapped files and the C++ heap are not in it.
#pragma once
#include <cstdint>

namespace shardwise::base {

/// Puts the counter in place of the CPU allocator; again is harmless. Call before other threads make tensors:
/// tensors that exist already are not counted, then or when freed.
/// Cost: two atomic additions and 80 bytes per allocation.
void install_memory_counter();

/// Keeps what is freed for the next step's tensors: given back to the system, every page would be faulted in
/// again.
void keep_freed_memory();

/// Bytes held now, by all threads; 0 without a counter.
int64_t live_bytes();
/// Most bytes held at once since the start or the last reset_peak.
int64_t peak_bytes();
void reset_peak();

}  // namespace shardwise::base
