// The inner loop of dropout: draws and applies the mask in one pass.
#pragma once
#include "shardwise/kernels/dropout_rule.h"
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// A dropout mask: keeps the elements whose 32-bit draw is at least `threshold`.
struct DropoutMask {
  uint64_t key;
  uint32_t threshold;
};

template <class T>
struct DropoutLoops {
  /// y[i] = kept ? x[i] · scale : 0, where x[i] is element `first` + i of the unsharded tensor.
  void (*apply)(T* y, const T* x, int64_t count, uint64_t first, DropoutMask mask, Accumulator<T> scale);
};
SHARDWISE_PER_ISA(DropoutLoops, dropout_loops)

}  // namespace shardwise::kernels
