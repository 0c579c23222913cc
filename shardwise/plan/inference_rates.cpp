#include "shardwise/plan/inference_rates.h"

#include <algorithm>

namespace shardwise::plan {
namespace {

double between(double of_cache, double of_memory, double memory_share) {
  return of_cache + memory_share * (of_memory - of_cache);
}

}  // namespace

/// The time of a byte grows from that of a cache to that of memory.
double InferenceRates::memory_share(double bytes) const {
  const auto seconds = [](const Rate::Point& point) { return 1 / point.per_second; };
  const double of_cache = seconds(reading.points().front()), of_memory = seconds(reading.points().back());
  if (of_memory <= of_cache) return 1;
  return std::clamp((1 / reading.at(bytes) - of_cache) / (of_memory - of_cache), 0.0, 1.0);
}

double InferenceRates::product(double flop, double rows, int64_t bits, double memory_share) const {
  const ReadRates& rates = of_bits(bits);
  return seconds_per_product +
         between(flop / rates.from_cache.at(rows), flop / rates.from_memory.at(rows), memory_share);
}

/// A line through both measurements.
double CachedAttentionRates::seconds(double elements, double queries, double memory_share) const {
  const auto of = [&](const ReadRates& rates) {
    return between(rates.from_cache.seconds(elements), rates.from_memory.seconds(elements), memory_share);
  };
  const double one = of(one_query), of_query = std::max(0.0, of(shared) - one) / (kQueries - 1);
  return one + (queries - 1) * of_query;
}

}  // namespace shardwise::plan
