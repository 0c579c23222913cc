#include "shardwise/kernels/rms_norm_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
void scale_row(T* __restrict y, const T* __restrict x, const T* __restrict weight, Accumulator<T> rstd,
               int64_t h) {
  for (int64_t i = 0; i < h; ++i) y[i] = narrow<T>(widen(x[i]) * rstd * widen(weight[i]));
}

template <class T>
void forward(T* y, Accumulator<T>* rstd, const T* x, const T* weight, double eps, int64_t rows, int64_t h) {
  using A = Accumulator<T>;
  for (int64_t row = 0; row < rows; ++row, x += h, y += h) {
    const A squares = sum_of<A>(h, [x](int64_t i) { return widen(x[i]) * widen(x[i]); });
    rstd[row] = 1 / sqrt_of(squares / static_cast<A>(h) + static_cast<A>(eps));
    scale_row(y, x, weight, rstd[row], h);
  }
}

// With u = dy · weight and m = mean(u · x): dx = rstd · (u − x · rstd² · m).
template <class T>
void dx_row(T* __restrict dx, const T* __restrict dy, const T* __restrict x, const T* __restrict weight,
            Accumulator<T> rstd, Accumulator<T> along_x, int64_t h) {
  for (int64_t i = 0; i < h; ++i) {
    dx[i] = narrow<T>(rstd * (widen(dy[i]) * widen(weight[i]) - widen(x[i]) * along_x));
  }
}

template <class T>
void dx_and_weight_grad_row(T* __restrict dx, Accumulator<T>* __restrict weight_grad, const T* __restrict dy,
                            const T* __restrict x, const T* __restrict weight, Accumulator<T> rstd,
                            Accumulator<T> along_x, int64_t h) {
  for (int64_t i = 0; i < h; ++i) {
    dx[i] = narrow<T>(rstd * (widen(dy[i]) * widen(weight[i]) - widen(x[i]) * along_x));
    weight_grad[i] += widen(dy[i]) * (widen(x[i]) * rstd);
  }
}

template <class T>
void backward(T* dx, Accumulator<T>* weight_grad, const T* dy, const T* x, const T* weight,
              const Accumulator<T>* rstd, int64_t rows, int64_t h) {
  using A = Accumulator<T>;
  for (int64_t row = 0; row < rows; ++row, x += h, dy += h, dx += h) {
    const A dot = sum_of<A>(h, [=](int64_t i) { return widen(dy[i]) * widen(weight[i]) * widen(x[i]); });
    const A along_x = rstd[row] * rstd[row] * dot / static_cast<A>(h);
    if (weight_grad) {
      dx_and_weight_grad_row(dx, weight_grad, dy, x, weight, rstd[row], along_x, h);
    } else {
      dx_row(dx, dy, x, weight, rstd[row], along_x, h);
    }
  }
}

}  // namespace

template <class T>
RmsNormLoops<T> rms_norm_loops() {
  return {forward<T>, backward<T>};
}
SHARDWISE_INSTANTIATE(RmsNormLoops, rms_norm_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
