#include "shardwise/kernels/few_rows_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

/// Outputs at once: one stream of weights alone keeps memory half idle.
constexpr int kOutputs = 4;

/// `count` outputs of each row. From the second row on their weights are in the nearest cache.
template <int count, class T>
void multiply_some(T* y, int64_t y_stride, const Accumulator<T>* x, const T* w, int64_t rows, int64_t k) {
  using A = Accumulator<T>;
  const T* __restrict weights = w;
  for (int64_t row = 0; row < rows; ++row) {
    const A* __restrict terms = x + row * k;
    A sums[count];
    sums_of<count>(sums, k, [=](int which, int64_t j) { return terms[j] * widen(weights[which * k + j]); });
    for (int which = 0; which < count; ++which) y[row * y_stride + which] = narrow<T>(sums[which]);
  }
}

template <class T>
void multiply(T* y, int64_t y_stride, const Accumulator<T>* x, const T* w, int64_t rows, int64_t outputs,
              int64_t k) {
  int64_t output = 0;
  for (; output + kOutputs <= outputs; output += kOutputs)
    multiply_some<kOutputs>(y + output, y_stride, x, w + output * k, rows, k);
  for (; output < outputs; ++output) multiply_some<1>(y + output, y_stride, x, w + output * k, rows, k);
}

}  // namespace

template <class T>
FewRowsLoops<T> few_rows_loops() {
  return {multiply<T>};
}
SHARDWISE_INSTANTIATE(FewRowsLoops, few_rows_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
