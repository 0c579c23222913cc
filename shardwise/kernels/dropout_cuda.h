// Dropout on a GPU, alone or with the bias and residual additions around it. Launchers queue kernels in a
// stream: they allocate nothing and wait for nothing.
//
// The mask is that of kernels/dropout.h, bit by bit: it depends only on the key and on an element's index in
// the unsharded tensor, and is drawn again when needed. Backward: the same function applied to the gradient.
// Source: Salmon et al. 2011 (Philox4x32-10).
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// Shapes: `y`, `x`, `residual` [rows, h], `bias` [h].
template <class T>
struct Dropout {
  T* y;
  const T *x, *bias, *residual;  // null residual: of x alone; null bias: none
  int64_t rows, h;               // for x alone, one row of all elements has the least overhead
  double p;                      // in [0, 1], the probability of 0
  uint64_t key;                  // RandomKey's
  uint64_t first_element;        // index of x's first element in the unsharded tensor
};
/// Computes y = residual + (x + bias) · mask / (1 − p). Rounds to T after each of the three operations that
/// there is, as they do alone. T: float or __nv_bfloat16.
template <class T>
void dropout(const Dropout<T>& d, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda
