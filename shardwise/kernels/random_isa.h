// The inner loops of random fills: standard normal or uniform numbers in fp64, one chunk at a time.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// Elements per chunk; elements 2j and 2j + 1 come from Philox block j. Always computes full chunks, so that
/// an element's bits do not depend on where a range begins.
inline constexpr int64_t kRandomChunk = 64;

template <class T>
struct RandomLoops {
  /// Sets z[i], i < kRandomChunk, to element 2 · first_block + i, standard normal.
  void (*normal)(T* z, uint64_t first_block, uint64_t key);
  /// Sets z[i], i < kRandomChunk, to element 2 · first_block + i, uniform in (0, 1).
  void (*uniform)(T* z, uint64_t first_block, uint64_t key);
};
SHARDWISE_PER_ISA(RandomLoops, random_loops)

}  // namespace shardwise::kernels
