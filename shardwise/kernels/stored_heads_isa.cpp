#include "shardwise/kernels/stored_heads_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

constexpr float kMost = 127;

/// Rounds to the nearest integer, ties to even; |x| < 2^22.
inline float rounded(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 · 2^23
  return (x + kShift) - kShift;
}

template <class T>
float quantize(int8_t* __restrict to, const T* __restrict from, int64_t d) {
  using A = base::Accumulator<T>;
  const A largest = max_of<A>(d, [=](int64_t i) {
    const A x = widen(from[i]);
    return x < 0 ? -x : x;
  });
  const A zero_or_nan = sum_of<A>(d, [=](int64_t i) { return widen(from[i]) * 0; });
  const float scale = static_cast<float>(largest / A{kMost} + zero_or_nan);
  const A factor = scale > 0 ? 1 / A{scale} : 0;
  for (int64_t i = 0; i < d; ++i) {
    float x = static_cast<float>(widen(from[i]) * factor);
    x = x >= -kMost ? x : -kMost;  // also NaN
    x = x <= kMost ? x : kMost;
    to[i] = static_cast<int8_t>(static_cast<int32_t>(rounded(x)));
  }
  return scale;
}

template <class T>
void dequantize(T* __restrict to, const int8_t* __restrict from, float scale, int64_t d) {
  using A = base::Accumulator<T>;
  for (int64_t i = 0; i < d; ++i) to[i] = narrow<T>(static_cast<A>(from[i]) * A{scale});
}

}  // namespace

template <class T>
StoredRowLoops<T> stored_row_loops() {
  return {quantize<T>, dequantize<T>};
}
SHARDWISE_INSTANTIATE(StoredRowLoops, stored_row_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
