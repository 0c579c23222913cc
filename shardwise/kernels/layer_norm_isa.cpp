#include "shardwise/kernels/layer_norm_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
void normalize_row(T* __restrict y, const T* __restrict x, AffineRow<const T> affine, Accumulator<T> mean,
                   Accumulator<T> rstd, int64_t h) {
  const T* __restrict weight = affine.weight, * __restrict bias = affine.bias;
  for (int64_t i = 0; i < h; ++i) {
    y[i] = narrow<T>((widen(x[i]) - mean) * rstd * widen(weight[i]) + widen(bias[i]));
  }
}

// Uses two passes over a cached row: squares of x − mean do not cancel.
template <class T>
void forward(T* y, MomentsOf<Accumulator<T>> moments, const T* x, AffineRow<const T> affine, double eps,
             int64_t rows, int64_t h) {
  using A = Accumulator<T>;
  for (int64_t row = 0; row < rows; ++row, x += h, y += h) {
    const A mean = sum_of<A>(h, [x](int64_t i) { return widen(x[i]); }) / static_cast<A>(h);
    const A squares =
        sum_of<A>(h, [x, mean](int64_t i) { return (widen(x[i]) - mean) * (widen(x[i]) - mean); });
    const A rstd = 1 / sqrt_of(squares / static_cast<A>(h) + static_cast<A>(eps));
    moments.mean[row] = mean;
    moments.rstd[row] = rstd;
    normalize_row(y, x, affine, mean, rstd, h);
  }
}

template <class T>
struct Row {
  const T *dy, *x, *weight;
  Accumulator<T> mean, rstd;

  /// Returns (x − mean) · rstd.
  Accumulator<T> normalized(int64_t i) const { return (widen(x[i]) - mean) * rstd; }
  /// Returns the gradient with respect to the normalized x.
  Accumulator<T> u(int64_t i) const { return widen(dy[i]) * widen(weight[i]); }
};

// dx = rstd · (u − mean(u) − normalized · mean(u · normalized)).
template <class T>
void dx_row(T* __restrict dx, const Row<T>& row, int64_t h) {
  using A = Accumulator<T>;
  const A mean = sum_of<A>(h, [row](int64_t i) { return row.u(i); }) / static_cast<A>(h);
  const A along = sum_of<A>(h, [row](int64_t i) { return row.u(i) * row.normalized(i); }) / static_cast<A>(h);
  const T* __restrict dy = row.dy, * __restrict x = row.x, * __restrict weight = row.weight;
  const Row<T> r{dy, x, weight, row.mean, row.rstd};
  for (int64_t i = 0; i < h; ++i) dx[i] = narrow<T>(r.rstd * (r.u(i) - mean - r.normalized(i) * along));
}

template <class T>
void add_weight_row(Accumulator<T>* __restrict gradient, const T* __restrict dy, const T* __restrict x,
                    Accumulator<T> mean, Accumulator<T> rstd, int64_t h) {
  for (int64_t i = 0; i < h; ++i) gradient[i] += widen(dy[i]) * ((widen(x[i]) - mean) * rstd);
}

template <class T>
void add_bias_row(Accumulator<T>* __restrict gradient, const T* __restrict dy, int64_t h) {
  for (int64_t i = 0; i < h; ++i) gradient[i] += widen(dy[i]);
}

template <class T>
void backward(T* dx, AffineRow<Accumulator<T>> gradients, const T* dy, const T* x, const T* weight,
              MomentsOf<const Accumulator<T>> moments, int64_t rows, int64_t h) {
  for (int64_t row = 0; row < rows; ++row, x += h, dy += h, dx += h) {
    const auto mean = moments.mean[row], rstd = moments.rstd[row];
    dx_row(dx, Row<T>{dy, x, weight, mean, rstd}, h);
    if (gradients.weight) add_weight_row(gradients.weight, dy, x, mean, rstd, h);
    if (gradients.bias) add_bias_row(gradients.bias, dy, h);
  }
}

}  // namespace

template <class T>
LayerNormLoops<T> layer_norm_loops() {
  return {forward<T>, backward<T>};
}
SHARDWISE_INSTANTIATE(LayerNormLoops, layer_norm_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
