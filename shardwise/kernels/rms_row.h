// One row of RMSNorm, forward and back: what the stream's norm and that of heads have in common. For
// `*_isa.cpp` only, as loops.h.
#pragma once
#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {

template <class T>
Accumulator<T> inverse_rms(const T* x, double eps, int64_t h) {
  using A = Accumulator<T>;
  const A squares = sum_of<A>(h, [x](int64_t i) { return widen(x[i]) * widen(x[i]); });
  return 1 / sqrt_of(squares / static_cast<A>(h) + static_cast<A>(eps));
}

/// `Y` may be the accumulator's type, as `Dy` below.
template <class Y, class T>
void normalize_row(Y* __restrict y, const T* __restrict x, const T* __restrict weight, Accumulator<T> rstd,
                   int64_t h) {
  for (int64_t i = 0; i < h; ++i) y[i] = narrow<Y>(widen(x[i]) * rstd * widen(weight[i]));
}

// With u = dy · weight and m = mean(u · x): dx = rstd · (u − x · along_x), along_x = rstd² · m.
template <bool adds_weight_grad, class T, class Dy>
void dx_row(T* __restrict dx, Accumulator<T>* __restrict weight_grad, const Dy* __restrict dy,
            const T* __restrict x, const T* __restrict weight, Accumulator<T> rstd, Accumulator<T> along_x,
            int64_t h) {
  for (int64_t i = 0; i < h; ++i) {
    dx[i] = narrow<T>(rstd * (widen(dy[i]) * widen(weight[i]) - widen(x[i]) * along_x));
    if constexpr (adds_weight_grad) weight_grad[i] += widen(dy[i]) * (widen(x[i]) * rstd);
  }
}

/// dx, and the weight's terms added to `weight_grad`, which may be null.
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
