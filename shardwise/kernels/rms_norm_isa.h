// The inner loops of RMSNorm, for rows of width h.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct RmsNormLoops {
  void (*forward)(T* y, Accumulator<T>* rstd, const T* x, const T* weight, double eps, int64_t rows,
                  int64_t h);
  /// Adds these rows' weight gradient to `weight_grad` [h], which may be null.
  void (*backward)(T* dx, Accumulator<T>* weight_grad, const T* dy, const T* x, const T* weight,
                   const Accumulator<T>* rstd, int64_t rows, int64_t h);
};
SHARDWISE_PER_ISA(RmsNormLoops, rms_norm_loops)

}  // namespace shardwise::kernels
