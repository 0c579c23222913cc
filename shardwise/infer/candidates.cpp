#include "shardwise/infer/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>

#include "shardwise/comm/gather_values.h"

namespace shardwise::infer {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

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
  double logit, penalized;
};

bool is_better(const Candidate& a, const Candidate& b) {
  return a.penalized > b.penalized || (a.penalized == b.penalized && a.id < b.id);
}

/// The logits with the penalty, of tokens from `begin` on.
std::vector<double> penalized(std::span<const double> logits, int64_t begin, const Due& due) {
  std::vector<double> result(logits.begin(), logits.end());
  const double penalty = due.sampling.repetition_penalty;
  if (penalty == 1) return result;
  const int64_t end = begin + std::ssize(logits);
  for (const int64_t id : std::set<int64_t>(due.text->begin(), due.text->end())) {
    if (id < begin || id >= end) continue;
    double& logit = result[id - begin];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  return result;
}

std::vector<Candidate> all_of(std::span<const double> logits, const Due& due) {
  const std::vector<double> chosen_by = penalized(logits, /*begin=*/0, due);
  std::vector<Candidate> all(logits.size());
  for (size_t id = 0; id < all.size(); ++id) all[id] = {static_cast<int64_t>(id), logits[id], chosen_by[id]};
  return all;
}

/// The `count` best tokens, in any order; NaN alone, where there is one, so that every rank sees it. Cost: a
/// comparison a token, mostly.
std::vector<Candidate> best_of(std::span<const double> logits, int64_t begin, size_t count, const Due& due) {
  const std::vector<double> chosen_by = penalized(logits, begin, due);
  std::vector<Candidate> best;  // a heap, the worst of them first
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate candidate{begin + static_cast<int64_t>(i), logits[i], chosen_by[i]};
    if (std::isnan(candidate.penalized)) return {candidate};
    if (best.size() == count) {
      if (!is_better(candidate, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), is_better);
      best.pop_back();
    }
    best.push_back(candidate);
    std::push_heap(best.begin(), best.end(), is_better);
  }
  return best;
}

/// `candidates`, ids ascending.
Choice choose(const std::vector<Candidate>& candidates, double log_sum, const Due& due) {
  Candidates given;
  for (const Candidate& candidate : candidates) {
    given.ids.push_back(candidate.id);
    given.logits.push_back(candidate.penalized);
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
    const double log_sum = due[i].wants_logprob ? ExpSum::of(row).log() : kNoNumber;
    choices.push_back(choose(all_of(row, due[i]), log_sum, due[i]));
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
    if (due.wants_logprob) sums[text] = ExpSum::of(logits);
    const std::vector<Candidate> own = best_of(logits, begin, count, due);
    std::copy(own.begin(), own.end(), best.begin() + static_cast<int64_t>(text * count));
  }
};

std::vector<Choice> choose_from_best(const Message& own, const std::vector<Due>& due,
                                     const comm::Group& group) {
  const bool wants_sums = std::ranges::any_of(due, &Due::wants_logprob);
  const auto sums = wants_sums ? comm::gather_values(own.sums, group) : std::vector<ExpSum>();
  const std::vector<Candidate> best = comm::gather_values(own.best, group);
  std::vector<Choice> choices;
  for (size_t text = 0; text < own.texts; ++text) {
    ExpSum sum;
    std::vector<Candidate> candidates;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (wants_sums) sum.add(sums[rank * own.texts + text]);
      const auto first = best.begin() + static_cast<int64_t>((rank * own.texts + text) * own.count);
      std::copy_if(first, first + static_cast<int64_t>(own.count), std::back_inserter(candidates),
                   [](const Candidate& candidate) { return candidate.penalized != kNone; });
    }
    std::ranges::sort(candidates, {}, &Candidate::id);
    const double log_sum = due[text].wants_logprob ? sum.log() : kNoNumber;
    choices.push_back(choose(candidates, log_sum, due[text]));
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
