#include "shardwise/infer/sharded_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>

#include "shardwise/comm/gather_values.h"

namespace shardwise::infer {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Σ exp(x) in a numerically stable form: the maximum and the sum relative to it. Partial sums can be
/// combined.
struct ExpSum {
  double largest = kMinusInfinity, sum = 0;

  static ExpSum of(std::span<const double> values) {
    ExpSum result;
    for (const double x : values) result.largest = std::max(result.largest, x);
    if (result.largest == kMinusInfinity) return result;
    for (const double x : values) result.sum += std::exp(x - result.largest);
    return result;
  }
  void add(const ExpSum& other) {
    if (other.largest == kMinusInfinity) return;
    const double joint = std::max(largest, other.largest);
    sum = sum * std::exp(largest - joint) + other.sum * std::exp(other.largest - joint);
    largest = joint;
  }
  double log() const { return largest + std::log(sum); }
};

/// A token with its logit without and with the repetition penalty and the rules.
struct Candidate {
  int64_t id;
  double logit, penalized;
};

bool is_better(const Candidate& a, const Candidate& b) {
  return a.penalized > b.penalized || (a.penalized == b.penalized && a.id < b.id);
}

/// The logits of the tokens from `begin` on, to change them by id; ids of other ranks' tokens have none.
struct LocalLogits {
  std::vector<double> values;
  int64_t begin;

  double* find(int64_t id) {
    return id >= begin && id < begin + std::ssize(values) ? &values[size_t(id - begin)] : nullptr;
  }
};

void penalize_repetition(LocalLogits& logits, const SamplingInput& input) {
  const double penalty = input.sampling.repetition_penalty;
  if (penalty == 1) return;
  for (const int64_t id : std::set<int64_t>(input.tokens->begin(), input.tokens->end())) {
    if (double* logit = logits.find(id)) *logit = *logit > 0 ? *logit / penalty : *logit * penalty;
  }
}

/// A NaN stays, so that it is reported.
void force(LocalLogits& logits, const std::vector<int64_t>& ids) {
  if (ids.empty()) return;
  for (double& logit : logits.values) logit = std::isnan(logit) ? kNaN : kMinusInfinity;
  for (const int64_t id : ids) {
    if (double* logit = logits.find(id)) *logit = std::isnan(*logit) ? kNaN : 0;
  }
}

void forbid(LocalLogits& logits, const std::vector<int64_t>& ids) {
  for (const int64_t id : ids) {
    if (double* logit = logits.find(id)) *logit = std::isnan(*logit) ? kNaN : kMinusInfinity;
  }
}

/// Returns the logits of tokens from `begin` on with the repetition penalty and the rules applied.
std::vector<double> penalized(std::span<const double> logits, int64_t begin, const SamplingInput& input) {
  LocalLogits local{{logits.begin(), logits.end()}, begin};
  penalize_repetition(local, input);
  force(local, input.choice.forced);
  forbid(local, input.choice.forbidden);
  return std::move(local.values);
}

std::vector<Candidate> all_of(std::span<const double> logits, const SamplingInput& input) {
  const std::vector<double> penalized_logits = penalized(logits, /*begin=*/0, input);
  std::vector<Candidate> all(logits.size());
  for (size_t id = 0; id < all.size(); ++id)
    all[id] = {static_cast<int64_t>(id), logits[id], penalized_logits[id]};
  return all;
}

/// Returns the `count` best tokens in any order, or only the first NaN if there is one, so that every rank
/// reports it. Cost: mostly one comparison per token.
std::vector<Candidate> best_of(std::span<const double> logits, int64_t begin, size_t count,
                               const SamplingInput& input) {
  const std::vector<double> penalized_logits = penalized(logits, begin, input);
  std::vector<Candidate> best;  // a heap with the worst candidate first
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate candidate{begin + static_cast<int64_t>(i), logits[i], penalized_logits[i]};
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

/// Samples from `candidates`, which are in ascending order of ids.
SampledToken sample(const std::vector<Candidate>& candidates, double log_sum, const SamplingInput& input) {
  TokenLogits logits;
  for (const Candidate& candidate : candidates) {
    logits.ids.push_back(candidate.id);
    logits.logits.push_back(candidate.penalized);
  }
  const int64_t id = sample_token(logits, input.sampling, static_cast<int64_t>(input.tokens->size()));
  const auto chosen = std::find_if(candidates.begin(), candidates.end(),
                                   [id](const Candidate& candidate) { return candidate.id == id; });
  return {id, chosen->logit - log_sum};
}

/// Logits as fp64 rows.
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

std::vector<SampledToken> sample_from_full_rows(const at::Tensor& logits, const base::Split& vocab,
                                                const std::vector<SamplingInput>& inputs,
                                                const comm::Group& group) {
  const Rows rows(group.all_gather(logits, vocab, /*dim=*/1));
  std::vector<SampledToken> sampled;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::span<const double> row = rows.row(i);
    const double log_sum = inputs[i].wants_logprob ? ExpSum::of(row).log() : kNaN;
    sampled.push_back(sample(all_of(row, inputs[i]), log_sum, inputs[i]));
  }
  return sampled;
}

/// A rank's message: for each sequence the ExpSum of its logits and its `count` best candidates, padded with
/// −inf.
struct Message {
  size_t sequences, count;
  std::vector<ExpSum> sums;
  std::vector<Candidate> best;

  Message(size_t sequences, size_t count)
      : sequences(sequences),
        count(count),
        sums(sequences),
        best(sequences * count, {0, kMinusInfinity, kMinusInfinity}) {}

  void fill(size_t sequence, std::span<const double> logits, int64_t begin, const SamplingInput& input) {
    if (input.wants_logprob) sums[sequence] = ExpSum::of(logits);
    const std::vector<Candidate> local = best_of(logits, begin, count, input);
    std::copy(local.begin(), local.end(), best.begin() + static_cast<int64_t>(sequence * count));
  }
};

std::vector<SampledToken> sample_from_candidates(const Message& local,
                                                 const std::vector<SamplingInput>& inputs,
                                                 const comm::Group& group) {
  const bool wants_sums = std::ranges::any_of(inputs, &SamplingInput::wants_logprob);
  const auto sums = wants_sums ? comm::gather_values(local.sums, group) : std::vector<ExpSum>();
  const std::vector<Candidate> best = comm::gather_values(local.best, group);
  std::vector<SampledToken> sampled;
  for (size_t sequence = 0; sequence < local.sequences; ++sequence) {
    ExpSum sum;
    std::vector<Candidate> candidates;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (wants_sums) sum.add(sums[rank * local.sequences + sequence]);
      const auto first =
          best.begin() + static_cast<int64_t>((rank * local.sequences + sequence) * local.count);
      std::copy_if(first, first + static_cast<int64_t>(local.count), std::back_inserter(candidates),
                   [](const Candidate& candidate) { return candidate.penalized != kMinusInfinity; });
    }
    std::ranges::sort(candidates, {}, &Candidate::id);
    const double log_sum = inputs[sequence].wants_logprob ? sum.log() : kNaN;
    sampled.push_back(sample(candidates, log_sum, inputs[sequence]));
  }
  return sampled;
}

}  // namespace

std::vector<SampledToken> sample_tokens(const at::Tensor& logits, const base::Split& vocab,
                                        const std::vector<SamplingInput>& inputs, const comm::Group& group) {
  int64_t count = 0;
  for (const SamplingInput& input : inputs)
    count = std::max(count, candidates_needed(input.sampling, vocab.size()));
  if (count == vocab.size()) return sample_from_full_rows(logits, vocab, inputs, group);
  Message local(inputs.size(), static_cast<size_t>(count));
  const Rows rows(logits);
  for (size_t i = 0; i < inputs.size(); ++i)
    local.fill(i, rows.row(i), vocab.range(group.rank()).begin, inputs[i]);
  return sample_from_candidates(local, inputs, group);
}

}  // namespace shardwise::infer
