// The inner loop of square_sum.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct SquareSumLoops {
  double (*sum)(const T* x, int64_t n);
};
SHARDWISE_PER_ISA(SquareSumLoops, square_sum_loops)

}  // namespace shardwise::kernels
