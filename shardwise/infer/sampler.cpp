#include "shardwise/infer/sampler.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

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

/// Places of candidates, the likelier first, of equals the lower id.
class Ranking {
 public:
  explicit Ranking(const std::vector<double>& logits) : logits_(logits), places_(logits.size()) {
    std::iota(places_.begin(), places_.end(), size_t{0});
  }
  /// The first `count` places, in order.
  const std::vector<size_t>& sorted(size_t count) {
    const auto end = places_.begin() + static_cast<int64_t>(std::min(count, places_.size()));
    const auto begin = places_.begin() + static_cast<int64_t>(sorted_);
    if (begin >= end) return places_;
    sorted_ = end - places_.begin();
    std::partial_sort(begin, end, places_.end(), [this](size_t a, size_t b) {
      return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
    });
    return places_;
  }

 private:
  const std::vector<double>& logits_;
  std::vector<size_t> places_;
  size_t sorted_ = 0;  // so many are in their places
};

/// What is left of the weights: the others are zero.
using Weights = std::vector<double>;

void keep_first(Weights& weights, const std::vector<size_t>& places, size_t count) {
  for (size_t i = count; i < places.size(); ++i) weights[places[i]] = 0;
}

void keep_top_k(Weights& weights, const std::vector<double>& logits, int64_t top_k) {
  const auto count = static_cast<size_t>(top_k);
  if (top_k == 0 || count >= weights.size()) return;
  keep_first(weights, Ranking(logits).sorted(count), count);
}

/// Sorted a few at a time: mostly a few reach the sum.
void keep_top_p(Weights& weights, double top_p) {
  if (top_p >= 1) return;
  const double enough = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  Ranking ranking(weights);
  size_t kept = 0;
  double sum = 0;
  for (size_t count = 64; kept < weights.size() && (kept == 0 || sum < enough); count *= 4) {
    const std::vector<size_t>& places = ranking.sorted(count);
    const size_t end = std::min(count, places.size());
    for (kept = 0, sum = 0; kept < end && (kept == 0 || sum < enough); ++kept) sum += weights[places[kept]];
  }
  keep_first(weights, ranking.sorted(kept), kept);
}

void keep_min_p(Weights& weights, double min_p) {
  for (double& weight : weights) weight = weight < min_p ? 0 : weight;  // the likeliest has weight 1
}

/// The candidate whose share holds the drawn number. Summed in order, so that equal logits choose equally on
/// every rank.
size_t draw(const Weights& weights, double random) {
  std::vector<double> sums(weights.size());
  std::inclusive_scan(weights.begin(), weights.end(), sums.begin());
  // The first sum above it: a token without a share is never drawn.
  return std::upper_bound(sums.begin(), sums.end(), random * sums.back()) - sums.begin();
}

}  // namespace

void check_sampling(const Sampling& s, const std::string& where) {
  TORCH_CHECK_VALUE(s.temperature >= 0 && std::isfinite(s.temperature), where,
                    ": temperature must be 0 or more; got ", s.temperature);
  TORCH_CHECK_VALUE(s.top_k >= 0, where, ": top_k must be 0 (all) or more; got ", s.top_k);
  TORCH_CHECK_VALUE(s.top_p > 0 && s.top_p <= 1, where, ": top_p must lie in (0, 1]; got ", s.top_p);
  TORCH_CHECK_VALUE(s.min_p >= 0 && s.min_p <= 1, where, ": min_p must lie in [0, 1]; got ", s.min_p);
  TORCH_CHECK_VALUE(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty), where,
                    ": repetition_penalty must be above 0; got ", s.repetition_penalty);
}

int64_t candidates_needed(const Sampling& sampling, int64_t vocab) {
  if (sampling.temperature == 0) return 1;
  return sampling.top_k == 0 ? vocab : std::min(sampling.top_k, vocab);
}

int64_t choose_token(const Candidates& candidates, const Sampling& sampling, int64_t position) {
  const auto& [ids, logits] = candidates;
  const bool has_nan = std::any_of(logits.begin(), logits.end(), [](double x) { return std::isnan(x); });
  const auto likeliest = std::max_element(logits.begin(), logits.end());  // the first of them
  const double highest = logits.empty() ? -std::numeric_limits<double>::infinity() : *likeliest;
  TORCH_CHECK(!has_nan && std::isfinite(highest), "generate: logits must be numbers; got ",
              has_nan ? "NaN" : std::to_string(highest), " at position ", position);
  if (sampling.temperature == 0) return ids[likeliest - logits.begin()];
  Weights weights;
  for (const double logit : logits) weights.push_back(std::exp((logit - highest) / sampling.temperature));
  keep_top_k(weights, logits, sampling.top_k);
  keep_top_p(weights, sampling.top_p);
  keep_min_p(weights, sampling.min_p);
  return ids[draw(weights, uniform(sampling.seed, position))];
}

}  // namespace shardwise::infer
