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

/// Returns a uniform number in [0, 1) from 53 random bits.
double uniform(uint64_t seed, int64_t position) {
  const base::PhiloxBlock block =
      base::philox(static_cast<uint64_t>(position), base::PhiloxUse::elements, seed);
  const uint64_t bits = uint64_t{block.word[0]} << 32 | block.word[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// Indices of candidates in descending order of logits, ties in ascending order of ids. Sorts lazily.
class Ranking {
 public:
  explicit Ranking(const std::vector<double>& logits) : logits_(logits), indices_(logits.size()) {
    std::iota(indices_.begin(), indices_.end(), size_t{0});
  }
  /// Returns the indices with the first `count` in order.
  const std::vector<size_t>& sorted(size_t count) {
    const auto end = indices_.begin() + static_cast<int64_t>(std::min(count, indices_.size()));
    const auto begin = indices_.begin() + static_cast<int64_t>(sorted_);
    if (begin >= end) return indices_;
    sorted_ = end - indices_.begin();
    std::partial_sort(begin, end, indices_.end(), [this](size_t a, size_t b) {
      return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
    });
    return indices_;
  }

 private:
  const std::vector<double>& logits_;
  std::vector<size_t> indices_;
  size_t sorted_ = 0;  // number of indices already in order
};

/// Unnormalized probabilities; removed candidates have zero.
using Weights = std::vector<double>;

void keep_first(Weights& weights, const std::vector<size_t>& indices, size_t count) {
  for (size_t i = count; i < indices.size(); ++i) weights[indices[i]] = 0;
}

void keep_top_k(Weights& weights, const std::vector<double>& logits, int64_t top_k) {
  const auto count = static_cast<size_t>(top_k);
  if (top_k == 0 || count >= weights.size()) return;
  keep_first(weights, Ranking(logits).sorted(count), count);
}

/// Sorts a few candidates at a time, since usually a few reach top_p.
void keep_top_p(Weights& weights, double top_p) {
  if (top_p >= 1) return;
  const double target = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  Ranking ranking(weights);
  size_t num_kept = 0;
  double sum = 0;
  for (size_t count = 64; num_kept < weights.size() && (num_kept == 0 || sum < target); count *= 4) {
    const std::vector<size_t>& indices = ranking.sorted(count);
    const size_t end = std::min(count, indices.size());
    for (num_kept = 0, sum = 0; num_kept < end && (num_kept == 0 || sum < target); ++num_kept)
      sum += weights[indices[num_kept]];
  }
  keep_first(weights, ranking.sorted(num_kept), num_kept);
}

void keep_min_p(Weights& weights, double min_p) {
  for (double& weight : weights)
    weight = weight < min_p ? 0 : weight;  // the most likely candidate has weight 1
}

void keep_typical_p(Weights& weights, double typical_p) {
  if (typical_p >= 1) return;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double entropy = 0;
  for (const double weight : weights) entropy -= weight > 0 ? weight / sum * std::log(weight / sum) : 0;
  std::vector<double> nearness;  // minus the distance, so that the nearest is ranked first
  for (const double weight : weights) nearness.push_back(-std::abs(-std::log(weight / sum) - entropy));
  Ranking ranking(nearness);
  const std::vector<size_t>& indices = ranking.sorted(weights.size());
  double covered = 0;
  size_t last = 0;  // the first at which typical_p is reached
  for (covered = weights[indices[0]]; last + 1 < indices.size() && covered < typical_p * sum;)
    covered += weights[indices[++last]];
  for (size_t i = 0; i < weights.size(); ++i) {
    if (nearness[i] < nearness[indices[last]]) weights[i] = 0;
  }
}

/// Returns the candidate whose interval of the cumulative sum contains `random`. Sums in order, so that equal
/// logits give the same candidate on every rank.
size_t draw(const Weights& weights, double random) {
  std::vector<double> sums(weights.size());
  std::inclusive_scan(weights.begin(), weights.end(), sums.begin());
  // upper_bound: a candidate with zero weight is never drawn.
  return std::upper_bound(sums.begin(), sums.end(), random * sums.back()) - sums.begin();
}

}  // namespace

void check_sampling(const Sampling& s, const std::string& where) {
  TORCH_CHECK_VALUE(s.temperature >= 0 && std::isfinite(s.temperature), where,
                    ": temperature must be 0 or more; got ", s.temperature, " [SW0064]");
  TORCH_CHECK_VALUE(s.top_k >= 0, where, ": top_k must be 0 (all) or more; got ", s.top_k, " [SW0065]");
  TORCH_CHECK_VALUE(s.top_p > 0 && s.top_p <= 1, where, ": top_p must be in (0, 1]; got ", s.top_p,
                    " [SW0066]");
  TORCH_CHECK_VALUE(s.min_p >= 0 && s.min_p <= 1, where, ": min_p must be in [0, 1]; got ", s.min_p,
                    " [SW0067]");
  TORCH_CHECK_VALUE(s.typical_p > 0 && s.typical_p <= 1, where, ": typical_p must be in (0, 1]; got ",
                    s.typical_p, " [SW0541]");
  TORCH_CHECK_VALUE(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty), where,
                    ": repetition_penalty must be above 0; got ", s.repetition_penalty, " [SW0068]");
}

int64_t candidates_needed(const Sampling& sampling, int64_t vocab) {
  if (sampling.temperature == 0) return 1;
  return sampling.top_k == 0 ? vocab : std::min(sampling.top_k, vocab);
}

int64_t sample_token(const TokenLogits& candidates, const Sampling& sampling, int64_t position) {
  const auto& [ids, logits] = candidates;
  const bool has_nan = std::any_of(logits.begin(), logits.end(), [](double x) { return std::isnan(x); });
  const auto best = std::max_element(logits.begin(), logits.end());  // the first of equal logits
  const double highest = logits.empty() ? -std::numeric_limits<double>::infinity() : *best;
  TORCH_CHECK(!has_nan && std::isfinite(highest), "generate: logits must be finite; got ",
              has_nan ? "NaN" : std::to_string(highest), " at position ", position, " [SW0382]");
  if (sampling.temperature == 0) return ids[best - logits.begin()];
  Weights weights;
  for (const double logit : logits) weights.push_back(std::exp((logit - highest) / sampling.temperature));
  keep_top_k(weights, logits, sampling.top_k);
  keep_top_p(weights, sampling.top_p);
  keep_min_p(weights, sampling.min_p);
  keep_typical_p(weights, sampling.typical_p);
  return ids[draw(weights, uniform(sampling.seed, position))];
}

}  // namespace shardwise::infer
