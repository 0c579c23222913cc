#include "shardwise/infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "shardwise/base/philox.h"

namespace shardwise::infer {
namespace {

/// Uniform in [0, 1), of 53 random bits.
double uniform(uint64_t seed, int64_t position) {
  const auto at = base::philox_key(static_cast<uint64_t>(position));
  const auto words = base::philox4x32({at[0], at[1], 0, 0}, base::philox_key(seed));
  const uint64_t bits = uint64_t{words[0]} << 32 | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// The token whose share of the softmax holds the drawn number. Summed in order, so that equal logits choose
/// equally on every rank.
int64_t draw(const double* logits, int64_t vocab, double highest, const Sampling& sampling,
             int64_t position) {
  std::vector<double> sums(vocab);
  double sum = 0;
  for (int64_t id = 0; id < vocab; ++id) {
    sum += std::exp((logits[id] - highest) / sampling.temperature);
    sums[id] = sum;
  }
  // The first sum above it: a token without a share is never drawn.
  const auto found = std::upper_bound(sums.begin(), sums.end(), uniform(sampling.seed, position) * sum);
  return found - sums.begin();
}

}  // namespace

int64_t choose_token(const at::Tensor& logits, const Sampling& sampling, int64_t position) {
  const at::Tensor wide = logits.to(at::kDouble).contiguous();
  const double* values = wide.const_data_ptr<double>();
  const int64_t vocab = wide.numel();
  const bool has_nan = std::any_of(values, values + vocab, [](double value) { return std::isnan(value); });
  const double* highest = std::max_element(values, values + vocab);  // the first of them
  TORCH_CHECK(!has_nan && std::isfinite(*highest), "generate: logits must be numbers; got ",
              has_nan ? "NaN" : std::to_string(*highest), " at position ", position);
  if (sampling.temperature == 0) return highest - values;
  return draw(values, vocab, *highest, sampling, position);
}

}  // namespace shardwise::infer
