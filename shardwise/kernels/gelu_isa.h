// The inner loops of GeLU with bias, for rows of `width` columns that are `stride` apart.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct GeluLoops {
  struct Form {
    void (*forward)(T* y, const T* x, const T* bias, int64_t rows, int64_t width, int64_t stride);
    /// Adds the sum of these rows' dx to `bias_grad` [width], which may be null.
    void (*backward)(T* dx, Accumulator<T>* bias_grad, const T* dy, const T* x, const T* bias, int64_t rows,
                     int64_t width, int64_t stride);
  };
  Form erf, tanh;
};
SHARDWISE_PER_ISA(GeluLoops, gelu_loops)

}  // namespace shardwise::kernels
