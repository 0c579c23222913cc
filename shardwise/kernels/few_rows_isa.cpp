#include "shardwise/kernels/few_rows_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
void multiply(T* y, int64_t y_stride, const Accumulator<T>* x, const T* w, int64_t rows, int64_t outputs,
              int64_t k) {
  using A = Accumulator<T>;
  for (int64_t output = 0; output < outputs; ++output) {
    const T* __restrict weights = w + output * k;  // in the nearest cache from the second row on
    for (int64_t row = 0; row < rows; ++row) {
      const A* __restrict terms = x + row * k;
      y[row * y_stride + output] =
          narrow<T>(sum_of<A>(k, [=](int64_t j) { return terms[j] * widen(weights[j]); }));
    }
  }
}

}  // namespace

template <class T>
FewRowsLoops<T> few_rows_loops() {
  return {multiply<T>};
}
SHARDWISE_INSTANTIATE(FewRowsLoops, few_rows_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
