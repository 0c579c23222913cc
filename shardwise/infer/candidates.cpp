#include "shardwise/infer/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <span>

#include "shardwise/comm/gather_values.h"

namespace shardwise::infer {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

/// Σ exp(x) as its largest term and the sum of all relative to it: sums of parts can be joined.
struct ExpSum {
  double largest = kNone, sum = 0;

  static ExpSum of(std::span<const double> values) {
    ExpSum result;
    for (const double x : values) result.largest = std::max(result.largest, x);
    if (result.largest == kNone) return result;
    for (const double x : values) result.sum += std::exp(x - result.largest);
    return result;
  }
  void add(const ExpSum& other) {
    if (other.largest == kNone) return;
    const double joint = std::max(largest, other.largest);
    sum = sum * std::exp(largest - joint) + other.sum * std::exp(other.largest - joint);
    largest = joint;
  }
  double log() const { return largest + std::log(sum); }
};

/// A token with its logit, as the model gave it and with the penalty.
struct Candidate {
  int64_t id;
  double logit, penalised;
};

bool is_better(const Candidate& a, const Candidate& b) {
  return a.penalised > b.penalised || (a.penalised == b.penalised && a.id < b.id);
}

/// The tokens whose logits these are, the first of which is token `begin`.
std::vector<Candidate> candidates_of(std::span<const double> logits, int64_t begin, const Due& due) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (const double logit : logits)
    candidates.push_back({begin + static_cast<int64_t>(candidates.size()), logit, logit});
  const double penalty = due.sampling.repetition_penalty;
  if (penalty == 1) return candidates;
  const auto end = begin + static_cast<int64_t>(logits.size());
  for (const int64_t id : std::set<int64_t>(due.text->begin(), due.text->end())) {
    if (id < begin || id >= end) continue;
    double& logit = candidates[id - begin].penalised;
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  return candidates;
}

/// The `count` best first. NaN counts as better than all numbers, so that every rank sees it.
void sort_best(std::vector<Candidate>& candidates, size_t count) {
  const auto end = candidates.begin() + static_cast<int64_t>(std::min(count, candidates.size()));
  const auto nan = std::find_if(candidates.begin(), candidates.end(),
                                [](const Candidate& c) { return std::isnan(c.penalised); });
  if (nan != candidates.end()) {
    std::iter_swap(candidates.begin(), nan);
  } else {
    std::partial_sort(candidates.begin(), end, candidates.end(), is_better);
  }
}

Choice choose(std::vector<Candidate> candidates, double log_sum, const Due& due) {
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  Candidates given;
  for (const Candidate& candidate : candidates) {
    given.ids.push_back(candidate.id);
    given.logits.push_back(candidate.penalised);
  }
  const int64_t id = choose_token(given, due.sampling, static_cast<int64_t>(due.text->size()));
  const auto chosen = std::find_if(candidates.begin(), candidates.end(),
                                   [id](const Candidate& candidate) { return candidate.id == id; });
  return {id, chosen->logit - log_sum};
}

/// [n, v/t] by rows, fp64.
class Rows {
 public:
  explicit Rows(const at::Tensor& logits) : wide_(logits.to(at::kDouble).contiguous()) {}
  std::span<const double> row(size_t i) const {
    const auto width = static_cast<size_t>(wide_.size(1));
    return {wide_.const_data_ptr<double>() + i * width, width};
  }

 private:
  at::Tensor wide_;
};

std::vector<Choice> choose_from_whole(const at::Tensor& logits, const base::Split& vocab,
                                      const std::vector<Due>& due, const comm::Group& group) {
  const Rows rows(group.all_gather(logits, vocab, /*dim=*/1));
  std::vector<Choice> choices;
  for (size_t i = 0; i < due.size(); ++i) {
    const std::span<const double> row = rows.row(i);
    choices.push_back(choose(candidates_of(row, /*begin=*/0, due[i]), ExpSum::of(row).log(), due[i]));
  }
  return choices;
}

/// What a rank sends: for each text the sum of its logits, then its `count` best; fewer are filled up with
/// −inf.
struct Message {
  size_t texts, count;
  std::vector<ExpSum> sums;
  std::vector<Candidate> best;

  Message(size_t texts, size_t count)
      : texts(texts), count(count), sums(texts), best(texts * count, {0, kNone, kNone}) {}

  void fill(size_t text, std::span<const double> logits, int64_t begin, const Due& due) {
    sums[text] = ExpSum::of(logits);
    std::vector<Candidate> own = candidates_of(logits, begin, due);
    sort_best(own, count);
    own.resize(std::min(count, own.size()));
    std::copy(own.begin(), own.end(), best.begin() + static_cast<int64_t>(text * count));
  }
};

std::vector<Choice> choose_from_best(const Message& own, const std::vector<Due>& due,
                                     const comm::Group& group) {
  const std::vector<ExpSum> sums = comm::gather_values(own.sums, group);
  const std::vector<Candidate> best = comm::gather_values(own.best, group);
  std::vector<Choice> choices;
  for (size_t text = 0; text < own.texts; ++text) {
    ExpSum sum;
    std::vector<Candidate> candidates;
    for (int rank = 0; rank < group.size(); ++rank) {
      sum.add(sums[rank * own.texts + text]);
      const auto first = best.begin() + static_cast<int64_t>((rank * own.texts + text) * own.count);
      std::copy_if(first, first + static_cast<int64_t>(own.count), std::back_inserter(candidates),
                   [](const Candidate& candidate) { return candidate.penalised != kNone; });
    }
    choices.push_back(choose(std::move(candidates), sum.log(), due[text]));
  }
  return choices;
}

}  // namespace

std::vector<Choice> choose_tokens(const at::Tensor& logits, const base::Split& vocab,
                                  const std::vector<Due>& due, const comm::Group& group) {
  int64_t count = 0;
  for (const Due& text : due) count = std::max(count, candidates_needed(text.sampling, vocab.size()));
  if (count == vocab.size()) return choose_from_whole(logits, vocab, due, group);
  Message own(due.size(), static_cast<size_t>(count));
  const Rows rows(logits);
  for (size_t i = 0; i < due.size(); ++i) own.fill(i, rows.row(i), vocab.range(group.rank()).begin, due[i]);
  return choose_from_best(own, due, group);
}

}  // namespace shardwise::infer
