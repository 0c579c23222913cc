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

// dx = rstd · (u − mean(u) − normalized · mean(u · normalized)). Adds this row's gradients in the same pass.
template <bool adds_weight, bool adds_bias, class T>
void dx_row(T* __restrict dx, AffineRow<Accumulator<T>> gradients, const Row<T>& row, int64_t h) {
  using A = Accumulator<T>;
  const auto sums = two_sums_of<A>(
      h, [row](int64_t i) { return row.u(i); }, [row](int64_t i) { return row.u(i) * row.normalized(i); });
  const A mean = sums.first / static_cast<A>(h), along = sums.second / static_cast<A>(h);
  A* __restrict weight_grad = gradients.weight, * __restrict bias_grad = gradients.bias;
  const T* __restrict dy = row.dy, * __restrict x = row.x, * __restrict weight = row.weight;
  const Row<T> r{dy, x, weight, row.mean, row.rstd};
  for (int64_t i = 0; i < h; ++i) {
    dx[i] = narrow<T>(r.rstd * (r.u(i) - mean - r.normalized(i) * along));
    if constexpr (adds_weight) weight_grad[i] += widen(dy[i]) * r.normalized(i);
    if constexpr (adds_bias) bias_grad[i] += widen(dy[i]);
  }
}

template <class T>
void backward(T* dx, AffineRow<Accumulator<T>> gradients, const T* dy, const T* x, const T* weight,
              MomentsOf<const Accumulator<T>> moments, int64_t rows, int64_t h) {
  const auto one = gradients.weight ? gradients.bias ? dx_row<true, true, T> : dx_row<true, false, T>
                   : gradients.bias ? dx_row<false, true, T>
                                    : dx_row<false, false, T>;
  for (int64_t row = 0; row < rows; ++row, x += h, dy += h, dx += h)
    one(dx, gradients, Row<T>{dy, x, weight, moments.mean[row], moments.rstd[row]}, h);
}

}  // namespace

template <class T>
LayerNormLoops<T> layer_norm_loops() {
  return {forward<T>, backward<T>};
}
SHARDWISE_INSTANTIATE(LayerNormLoops, layer_norm_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
