#include "shardwise/kernels/few_rows_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

/// How far before their use weights are asked for. The processor's own guesses end at every page, and leave
/// memory a sixth of its time idle; nearer or into the first cache is slower.
constexpr int64_t kAheadBytes = 8192, kLineBytes = 64;

/// Asks for one step's weights, into the second cache. Behind the last weight it asks for what is not used.
template <class T>
void fetch(const T* weights) {
  const char* first = reinterpret_cast<const char*>(weights) + kAheadBytes;
  constexpr int64_t bytes = kLanes<Accumulator<T>> * sizeof(T);
  for (int64_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(first + at, /*rw=*/0, /*locality=*/2);
}

template <class T>
void multiply(T* y, int64_t y_stride, const Accumulator<T>* x, const T* w, int64_t rows, int64_t outputs,
              int64_t k) {
  using A = Accumulator<T>;
  for (int64_t output = 0; output < outputs; ++output) {
    const T* __restrict weights = w + output * k;
    const auto product = [=](int64_t row, auto ahead) {
      const A* __restrict terms = x + row * k;
      const auto term = [=](int64_t j) { return terms[j] * widen(weights[j]); };
      y[row * y_stride + output] = narrow<T>(sum_of<A>(k, term, ahead));
    };
    if (rows > 0) product(/*row=*/0, [=](int64_t j) { fetch(weights + j); });
    // The weights are in the nearest cache by now.
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
