// Sums of rows into an accumulator: bias gradients, partial weight gradients, embedding gradients.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct ColumnSumLoops {
  /// sum[i] += Σ over `rows` of x[row · stride + i], i < width. The order of the sum depends only on `rows`.
  void (*add_rows)(Accumulator<T>* sum, const T* x, int64_t rows, int64_t width, int64_t stride);
};
SHARDWISE_PER_ISA(ColumnSumLoops, column_sum_loops)

}  // namespace shardwise::kernels
