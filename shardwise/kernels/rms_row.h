// One row of RMSNorm, forward and backward, shared by rms_norm and qk_norm. Only for `*_isa.cpp`,
// see loops.h.
#pragma once
#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {

template <class T>
Accumulator<T> inverse_rms(const T* x, double eps, int64_t h) {
  using A = Accumulator<T>;
  const A squares = sum_of<A>(h, [x](int64_t i) { return widen(x[i]) * widen(x[i]); });
  return 1 / sqrt_of(squares / static_cast<A>(h) + static_cast<A>(eps));
}

/// `Y` is T or the accumulator's type.
template <class Y, class T>
void normalize_row(Y* __restrict y, const T* __restrict x, const T* __restrict weight, Accumulator<T> rstd,
                   int64_t h) {
  for (int64_t i = 0; i < h; ++i) y[i] = narrow<Y>(widen(x[i]) * rstd * widen(weight[i]));
}

// Computes dx = rstd · (u − x · along_x), with u = dy · weight and along_x = rstd² · mean(u · x).
template <bool adds_weight_grad, class T, class Dy>
void dx_row(T* __restrict dx, Accumulator<T>* __restrict weight_grad, const Dy* __restrict dy,
            const T* __restrict x, const T* __restrict weight, Accumulator<T> rstd, Accumulator<T> along_x,
            int64_t h) {
  for (int64_t i = 0; i < h; ++i) {
    dx[i] = narrow<T>(rstd * (widen(dy[i]) * widen(weight[i]) - widen(x[i]) * along_x));
    if constexpr (adds_weight_grad) weight_grad[i] += widen(dy[i]) * (widen(x[i]) * rstd);
  }
}

/// Computes dx and adds this row's weight gradient to `weight_grad`, which may be null. `Dy` is T or the
/// accumulator's type.
template <class T, class Dy>
void rms_row_backward(T* dx, Accumulator<T>* weight_grad, const Dy* dy, const T* x, const T* weight,
                      Accumulator<T> rstd, int64_t h) {
  using A = Accumulator<T>;
  const A dot = sum_of<A>(h, [=](int64_t i) { return widen(dy[i]) * widen(weight[i]) * widen(x[i]); });
  const A along_x = rstd * rstd * dot / static_cast<A>(h);
  if (weight_grad) {
    dx_row</*adds_weight_grad=*/true>(dx, weight_grad, dy, x, weight, rstd, along_x, h);
  } else {
    dx_row</*adds_weight_grad=*/false>(dx, weight_grad, dy, x, weight, rstd, along_x, h);
  }
}

}  // namespace shardwise::kernels::SHARDWISE_ISA
