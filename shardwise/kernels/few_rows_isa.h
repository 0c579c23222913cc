// The product of a few rows with a weight, which reads the weight once in its storage layout.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct FewRowsLoops {
  using A = Accumulator<T>;
  /// y[i · y_stride + o] = Σ_j x[i · k + j] · w[o · k + j] for i < rows and o < outputs. Sums in A, in an
  /// order that depends only on k.
  void (*multiply)(T* y, int64_t y_stride, const A* x, const T* w, int64_t rows, int64_t outputs, int64_t k);
};
SHARDWISE_PER_ISA(FewRowsLoops, few_rows_loops)

}  // namespace shardwise::kernels
