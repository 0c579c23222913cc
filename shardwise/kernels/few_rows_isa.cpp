#include "shardwise/kernels/few_rows_isa.h"

#include "shardwise/base/prefetch.h"
#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

constexpr int64_t kLineBytes = 64;

/// Returns the software prefetch distance in bytes. Several rows need more, because nothing is prefetched
/// while the others are multiplied.
int64_t prefetch_distance(int64_t rows) {
  return rows == 1 ? base::prefetch_bytes() : 8192;
}

/// Prefetches one step's weights into the second-level cache. Near the end it prefetches beyond the weights.
template <class T>
void prefetch(const T* weights, int64_t distance) {
  const char* first = reinterpret_cast<const char*>(weights) + distance;
  constexpr int64_t bytes = kLanes<Accumulator<T>> * sizeof(T);
  for (int64_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(first + at, /*rw=*/0, /*locality=*/2);
}

template <class T>
void multiply(T* y, int64_t y_stride, const Accumulator<T>* x, const T* w, int64_t rows, int64_t outputs,
              int64_t k) {
  using A = Accumulator<T>;
  const int64_t distance = prefetch_distance(rows);
  for (int64_t output = 0; output < outputs; ++output) {
    const T* __restrict weights = w + output * k;
    const auto product = [=](int64_t row, auto ahead) {
      const A* __restrict x_row = x + row * k;
      const auto term = [=](int64_t j) { return x_row[j] * widen(weights[j]); };
      y[row * y_stride + output] = narrow<T>(sum_of<A>(k, term, ahead));
    };
    if (rows > 0) product(/*row=*/0, [=](int64_t j) { prefetch(weights + j, distance); });
    // The weights are now in the first-level cache.
    for (int64_t row = 1; row < rows; ++row) product(row, [](int64_t) {});
  }
}

}  // namespace

template <class T>
FewRowsLoops<T> few_rows_loops() {
  return {multiply<T>};
}
SHARDWISE_INSTANTIATE(FewRowsLoops, few_rows_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
