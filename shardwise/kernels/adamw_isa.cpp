#include "shardwise/kernels/adamw_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
constexpr bool kIsRounded = sizeof(T) < sizeof(Accumulator<T>);

template <class T, bool zeroes>
void update(AdamWElements<T> x, int64_t begin, int64_t end, AdamWFactors<Accumulator<T>> by) {
  using A = Accumulator<T>;
  A* __restrict weights = x.weights;
  A* __restrict gradient = x.gradient;
  A* __restrict exp_avg = x.exp_avg, * __restrict exp_avg_sq = x.exp_avg_sq;
  T* __restrict rounded = x.rounded;
  for (int64_t i = begin; i < end; ++i) {
    const A g = gradient[i] * by.gradient_scale;
    const A m = exp_avg[i] + (g - exp_avg[i]) * by.rate1;
    const A v = exp_avg_sq[i] * by.beta2 + g * g * by.rate2;
    const A w = weights[i] * by.decay - by.step_size * m / (sqrt_of(v) * by.inverse_root + by.eps);
    if constexpr (zeroes) gradient[i] = 0;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    weights[i] = w;
    if constexpr (kIsRounded<T>) rounded[i] = narrow<T>(w);
  }
}

}  // namespace

template <class T>
AdamWLoops<T> adamw_loops() {
  return {update<T, /*zeroes=*/false>, update<T, /*zeroes=*/true>};
}
SHARDWISE_INSTANTIATE(AdamWLoops, adamw_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
