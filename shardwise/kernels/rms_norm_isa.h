// The inner loops of RMSNorm: rows h wide.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct RmsNormLoops {
  void (*forward)(T* y, Accumulator<T>* rstd, const T* x, const T* weight, double eps, int64_t rows,
                  int64_t h);
  /// `weight_grad` [h], to which these rows' terms are added, may be null.
  void (*backward)(T* dx, Accumulator<T>* weight_grad, const T* dy, const T* x, const T* weight,
                   const Accumulator<T>* rstd, int64_t rows, int64_t h);
};
SHARDWISE_PER_ISA(RmsNormLoops, rms_norm_loops)

}  // namespace shardwise::kernels
