// The inner loops of LayerNorm, for rows of width h.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// Weight and bias, or the accumulators of their gradients, either of which may be null.
template <class T>
struct AffineRow {
  T *weight, *bias;
};
template <class A>
struct MomentsOf {
  A *mean, *rstd;
};

template <class T>
struct LayerNormLoops {
  using A = Accumulator<T>;
  void (*forward)(T* y, MomentsOf<A> moments, const T* x, AffineRow<const T> affine, double eps, int64_t rows,
                  int64_t h);
  void (*backward)(T* dx, AffineRow<A> gradients, const T* dy, const T* x, const T* weight,
                   MomentsOf<const A> moments, int64_t rows, int64_t h);
};
SHARDWISE_PER_ISA(LayerNormLoops, layer_norm_loops)

}  // namespace shardwise::kernels
