// What CUDA offers to the code of a thread, for device_code.h.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "tests/support/emulator/fault.h"
#include "tests/support/emulator/thread.h"

namespace shardwise::emulator {

/// Of the running thread.
const Place& place();
int lane();

/// Waits for the block. Orders memory.
void barrier();
/// Waits for the lanes of the mask. Orders memory.
void warp_barrier(unsigned mask);
/// Waits for the lanes of the mask, and returns the values that they gave, by lane. Orders no memory, as in
/// CUDA.
const uint64_t* warp_values(unsigned mask, uint64_t own);
/// Lets other threads run: in every loop that waits for one.
void pause();
/// Returns the block's memory of this tag.
void* shared_memory(size_t bytes, const void* tag);

/// Returns `value` of lane `from`, or the own one if `from` is outside the part of `width` lanes.
template <class T>
[[gnu::always_inline]] inline T shuffled(unsigned mask, T value, int from, int width) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t own = 0;
  std::memcpy(&own, &value, sizeof(T));
  const uint64_t* all = warp_values(mask, own);
  const int first = lane() / width * width;
  if (from < first || from >= first + width) return value;
  if ((mask >> from & 1) == 0)
    throw Fault("shuffle: lane " + std::to_string(from) + " is read and is not in the mask");
  T other;
  std::memcpy(&other, &all[from], sizeof(T));
  return other;
}

/// Returns the lanes of the mask that gave the same value.
template <class T>
[[gnu::always_inline]] inline unsigned equal_lanes(unsigned mask, T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_integral_v<T>);
  const auto own = static_cast<uint64_t>(value);
  const uint64_t* all = warp_values(mask, own);
  unsigned equal = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) != 0 && all[lane] == own) equal |= 1u << lane;
  return equal;
}

}  // namespace shardwise::emulator
