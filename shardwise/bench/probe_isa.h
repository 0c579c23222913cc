// Inner loops that reach the limits of a core: of reading memory and of fp32 arithmetic.
#pragma once
#include <cstdint>

#include "shardwise/kernels/isa.h"

namespace shardwise::bench {

template <class T>
struct ProbeLoops {
  /// Returns the sum of `count` words, which it reads in order.
  uint64_t (*read)(const uint64_t* words, int64_t count);
  /// Runs `iterations` of independent multiply-adds in registers. Returns a sum, which makes them necessary.
  float (*multiply_add)(int64_t iterations);
  int64_t operations;  // of one iteration
};
SHARDWISE_PER_ISA(ProbeLoops, probe_loops)

}  // namespace shardwise::bench
