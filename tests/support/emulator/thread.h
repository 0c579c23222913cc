// An emulated CUDA thread.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <exception>

#include "tests/support/emulator/context.h"
#include "tests/support/emulator/seat.h"

namespace shardwise::emulator {

class Block;

inline constexpr unsigned kWarp = 32;  // lanes

/// CUDA's threadIdx, blockIdx, blockDim and gridDim.
struct Place {
  uint3 thread, block;
  dim3 threads, blocks;
};

/// What a thread does or waits for.
enum class State { ready, pausing, at_barrier, in_warp, done };

struct Thread {
  Place place;
  Block* block;
  unsigned number;  // within the block
  Seat seat;
  State state = State::ready;
  const void* site = nullptr;                // where in the kernel it waits
  unsigned mask = 0;                         // of lanes, in_warp
  uint64_t own = 0;                          // the value that it gives to the warp
  std::array<uint64_t, kWarp> of_warp = {};  // the values of the lanes in the mask
  Context context = {};
  void* fake_stack = nullptr;
  std::exception_ptr fault = nullptr;

  unsigned warp() const { return number / kWarp; }
  unsigned lane() const { return number % kWarp; }
};

}  // namespace shardwise::emulator
