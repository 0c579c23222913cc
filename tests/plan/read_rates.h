// Rates of inference that are the same from caches and from memory.
#pragma once
#include "shardwise/plan/inference_rates.h"

namespace shardwise::plan {

/// FLOP per second of products with weights of 16, 8 and 4 bits, and elements per second of attention to a
/// cache, by any number of heads.
inline InferenceRates inference_rates(double bf16, double int8, double int4, double cached_attention) {
  const auto same = [](double per_second) {
    const Rate rate({{1, per_second}}, "synthetic");
    return ReadRates{rate, rate};
  };
  return {.bf16 = same(bf16),
          .int8 = same(int8),
          .int4 = same(int4),
          .cached_attention = {same(cached_attention), same(cached_attention)},
          .reading = Rate({{1, 1e12}}, "synthetic"),
          .seconds_per_product = 0};
}

}  // namespace shardwise::plan
