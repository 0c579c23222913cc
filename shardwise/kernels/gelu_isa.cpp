// gelu(z) = z · Φ(z), gelu'(z) = Φ(z) + z · Φ'(z): the two forms are two Φ.
#include "shardwise/kernels/gelu_isa.h"

#include "shardwise/kernels/gelu_tail.h"
#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

/// Columns of a block, whose sums stay in the first-level cache. Shorter runs of a row are read more slowly.
constexpr int64_t kColumns = 2048;
/// Rows per partial sum: short sums have small rounding errors.
constexpr int64_t kRows = 64;

template <class A>
struct Phi {
  A value, slope;
};

/// Returns Φ(−|z|), where `density` = e^(−z²/2).
inline float lower_tail(float z, float density) {
  const float t = 1 / (1 + GeluTail::kSlope * __builtin_fabsf(z));
  float p = GeluTail::c8;
  p = p * t + GeluTail::c7;
  p = p * t + GeluTail::c6;
  p = p * t + GeluTail::c5;
  p = p * t + GeluTail::c4;
  p = p * t + GeluTail::c3;
  p = p * t + GeluTail::c2;
  p = p * t + GeluTail::c1;
  p = p * t + GeluTail::c0;
  return 0.5f * density * (p * t);
}
inline double lower_tail(double z, double) {
  return 0.5 * __builtin_erfc(__builtin_fabs(z) * 0.70710678118654752440);
}

struct Erf {
  template <class A>
  static Phi<A> phi(A z) {
    const A density = exp_of(z * z * A(-0.5));
    const A tail = lower_tail(z, density);
    return {z < 0 ? tail : 1 - tail, density * A(0.39894228040143267794)};
  }
};

/// Computes (1 + tanh u) / 2 as the logistic function of 2u. Beyond ±24 it is 0 or 1 in every type with slope
/// 0; clamping avoids an overflow of z³.
struct Tanh {
  template <class A>
  static Phi<A> phi(A z) {
    constexpr A scale = A(2 * 0.79788456080286535588), cubic = A(0.044715);
    const A x = z > 24 ? A(24) : z < -24 ? A(-24) : z;
    const A value = 1 / (1 + exp_of(-scale * (x + cubic * x * x * x)));
    return {value, value * (1 - value) * scale * (1 + 3 * cubic * x * x)};
  }
};

template <class Form, class T>
void forward_row(T* __restrict y, const T* __restrict x, const T* __restrict bias, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const auto z = widen(x[i]) + widen(bias[i]);
    y[i] = narrow<T>(z * Form::phi(z).value);
  }
}

template <class Form, class T>
void backward_row(T* __restrict dx, Accumulator<T>* __restrict sum, const T* __restrict dy,
                  const T* __restrict x, const T* __restrict bias, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const auto z = widen(x[i]) + widen(bias[i]);
    const auto phi = Form::phi(z);
    const auto dz = widen(dy[i]) * (phi.value + z * phi.slope);
    dx[i] = narrow<T>(dz);
    sum[i] += dz;
  }
}

template <class Form, class T>
void forward(T* y, const T* x, const T* bias, int64_t rows, int64_t width, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row) forward_row<Form>(y + row * stride, x + row * stride, bias, width);
}

template <class Form, class T>
void backward_block(T* dx, Accumulator<T>* bias_grad, const T* dy, const T* x, const T* bias, int64_t rows,
                    int64_t width, int64_t stride) {
  Accumulator<T> sum[kColumns] = {};
  for (int64_t at = 0; at < rows * stride; at += stride)
    backward_row<Form>(dx + at, sum, dy + at, x + at, bias, width);
  if (!bias_grad) return;
  for (int64_t i = 0; i < width; ++i) bias_grad[i] += sum[i];
}

template <class Form, class T>
void backward(T* dx, Accumulator<T>* bias_grad, const T* dy, const T* x, const T* bias, int64_t rows,
              int64_t width, int64_t stride) {
  for (int64_t column = 0; column < width; column += kColumns) {
    const int64_t columns = width - column < kColumns ? width - column : kColumns;
    for (int64_t row = 0; row < rows; row += kRows) {
      const int64_t at = row * stride + column, count = rows - row < kRows ? rows - row : kRows;
      backward_block<Form>(dx + at, bias_grad ? bias_grad + column : nullptr, dy + at, x + at, bias + column,
                           count, columns, stride);
    }
  }
}

}  // namespace

template <class T>
GeluLoops<T> gelu_loops() {
  return {{forward<Erf, T>, backward<Erf, T>}, {forward<Tanh, T>, backward<Tanh, T>}};
}
SHARDWISE_INSTANTIATE(GeluLoops, gelu_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
