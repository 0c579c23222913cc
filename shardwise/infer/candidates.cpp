#include "shardwise/infer/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "shardwise/kernels/first_above.h"
#include "shardwise/kernels/tensors.h"

namespace shardwise::infer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kExcluded = -kInfinity;  // the logit of a token that is never chosen

bool is_better(const Candidate& a, const Candidate& b) {
  return a.penalized > b.penalized || (a.penalized == b.penalized && a.id < b.id);
}

/// The logits of the tokens from `begin` on; ids of other ranks' tokens have none.
class RowLogits {
 public:
  RowLogits(const at::Tensor& row, int64_t begin) : row_(row), begin_(begin) {}

  bool contain(int64_t id) const { return id >= begin_ && id < end(); }
  /// Returns the logit of a token that they contain.
  double of(int64_t id) const {
    double logit = 0;
    kernels::with_element_type(
        "logits", row_, [&]<class T>(T) { logit = base::widen(kernels::elements<T>(row_)[id - begin_]); });
    return logit;
  }
  /// Returns the first token from `id` on whose logit is NaN or above `bound`, or the end.
  int64_t first_above(int64_t id, double bound) const {
    return begin_ + kernels::first_above(row_, id - begin_, bound);
  }
  int64_t begin() const { return begin_; }
  int64_t end() const { return begin_ + row_.size(0); }

 private:
  at::Tensor row_;
  int64_t begin_;
};

/// What the repetition penalty and the rules make of a rank's tokens.
struct Adjustments {
  std::map<int64_t, double> penalized;  // of the tokens that they change
  bool excludes_others = false;         // whether no other token may be chosen
};

/// `Logits`: RowLogits or KnownLogits.
template <class Logits>
Adjustments adjustments_of(const Logits& logits, const SamplingInput& input) {
  Adjustments result;
  const auto set = [&](int64_t id, double value) {
    if (logits.contain(id)) result.penalized[id] = value;
  };
  if (const double penalty = input.sampling.repetition_penalty; penalty != 1) {
    for (const int64_t id : std::set<int64_t>(input.tokens->begin(), input.tokens->end())) {
      if (!logits.contain(id)) continue;
      const double logit = logits.of(id);
      set(id, logit > 0 ? logit / penalty : logit * penalty);
    }
  }
  if (!input.choice.forced.empty()) {
    result = {{}, /*excludes_others=*/true};
    for (const int64_t id : input.choice.forced) set(id, 0);
  }
  for (const int64_t id : input.choice.forbidden) set(id, kExcluded);
  return result;
}

/// The best `count` of the tokens that it was offered.
class Best {
 public:
  explicit Best(size_t count) : count_(count) {}

  /// Returns what a logit must exceed to be among the best, if its id is higher than all before it.
  double bound() const { return worst_first_.size() < count_ ? kExcluded : worst_first_.front().penalized; }

  void offer(const Candidate& candidate) {
    if (candidate.penalized == kExcluded || count_ == 0) return;
    if (worst_first_.size() == count_) {
      if (!is_better(candidate, worst_first_.front())) return;
      std::ranges::pop_heap(worst_first_, is_better);
      worst_first_.pop_back();
    }
    worst_first_.push_back(candidate);
    std::ranges::push_heap(worst_first_, is_better);
  }

  std::vector<Candidate> take() { return std::move(worst_first_); }

 private:
  size_t count_;
  std::vector<Candidate> worst_first_;  // a heap
};

template <class Logits>
std::vector<Candidate> best_of(const Logits& logits, size_t count, const SamplingInput& input) {
  const auto [changed, excludes_others] = adjustments_of(logits, input);
  Best best(count);
  const auto bound = [&, only_nan = excludes_others] { return only_nan ? kInfinity : best.bound(); };
  for (int64_t id = logits.first_above(logits.begin(), bound()); id < logits.end();
       id = logits.first_above(id + 1, bound())) {
    const double logit = logits.of(id);
    if (std::isnan(logit)) return {{id, logit, logit}};
    if (!changed.contains(id)) best.offer({id, logit, logit});
  }
  for (const auto& [id, penalized] : changed) best.offer({id, logits.of(id), penalized});
  return best.take();
}

}  // namespace

std::vector<Candidate> all_candidates(const at::Tensor& row, const SamplingInput& input) {
  const Adjustments adjustments = adjustments_of(RowLogits(row, /*begin=*/0), input);
  std::vector<Candidate> all(static_cast<size_t>(row.size(0)));
  kernels::with_element_type("logits", row, [&]<class T>(T) {
    const T* values = kernels::elements<T>(row);
    for (size_t id = 0; id < all.size(); ++id) {
      const double logit = base::widen(values[id]);
      const bool is_excluded = adjustments.excludes_others && !std::isnan(logit);
      all[id] = {static_cast<int64_t>(id), logit, is_excluded ? kExcluded : logit};
    }
  });
  for (const auto& [id, penalized] : adjustments.penalized) {
    Candidate& candidate = all[static_cast<size_t>(id)];
    candidate.penalized = std::isnan(candidate.logit) ? candidate.logit : penalized;
  }
  return all;
}

std::vector<Candidate> best_candidates(const at::Tensor& row, int64_t begin, size_t count,
                                       const SamplingInput& input) {
  return best_of(RowLogits(row, begin), count, input);
}

std::vector<Candidate> best_candidates(const KnownLogits& logits, size_t count, const SamplingInput& input) {
  return best_of(logits, count, input);
}

std::vector<int64_t> changed_ids(const SamplingInput& input) {
  std::set<int64_t> ids(input.choice.forced.begin(), input.choice.forced.end());
  ids.insert(input.choice.forbidden.begin(), input.choice.forbidden.end());
  if (input.sampling.repetition_penalty != 1) ids.insert(input.tokens->begin(), input.tokens->end());
  return {ids.begin(), ids.end()};
}

}  // namespace shardwise::infer
