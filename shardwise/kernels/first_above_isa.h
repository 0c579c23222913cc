// The inner loop of first_above.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct FirstAboveLoops {
  /// Returns the first i in [begin, end) whose value is NaN or above `bound`; `end` if there is none.
  int64_t (*first_above)(const T* values, int64_t begin, int64_t end, Accumulator<T> bound);
};
SHARDWISE_PER_ISA(FirstAboveLoops, first_above_loops)

}  // namespace shardwise::kernels
