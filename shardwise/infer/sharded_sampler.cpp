#include "shardwise/infer/sharded_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

  static ExpSum of(const at::Tensor& row) {
    const at::Tensor wide = row.to(at::kDouble);
    const std::span<const double> values(wide.const_data_ptr<double>(), static_cast<size_t>(wide.size(0)));
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

at::Tensor row_of(const at::Tensor& logits, size_t i) {
  return logits.select(/*dim=*/0, static_cast<int64_t>(i)).contiguous();
}

/// Sums shard by shard, so that the bits are those of gathered sums, whatever the other sequences of a batch
/// need.
ExpSum exp_sum_of(const at::Tensor& row, const base::Split& vocab) {
  ExpSum sum;
  for (int rank = 0; rank < vocab.ranks(); ++rank) {
    const base::Range shard = vocab.range(rank);
    sum.add(ExpSum::of(row.narrow(/*dim=*/0, shard.begin, shard.size())));
  }
  return sum;
}

std::vector<SampledToken> sample_from_full_rows(const at::Tensor& logits, const base::Split& vocab,
                                                const std::vector<SamplingInput>& inputs,
                                                const comm::Group& group) {
  const at::Tensor full = group.all_gather(logits, vocab, /*dim=*/1).cpu();
  std::vector<SampledToken> sampled;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor row = row_of(full, i);
    const double log_sum = inputs[i].wants_logprob ? exp_sum_of(row, vocab).log() : kNaN;
    sampled.push_back(sample(all_candidates(row, inputs[i]), log_sum, inputs[i]));
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

  void set(size_t sequence, const std::vector<Candidate>& candidates) {
    std::ranges::copy(candidates, best.begin() + static_cast<int64_t>(sequence * count));
  }
};

/// Samples from logits on a device, of which the host fetches only the candidates.
std::vector<SampledToken> sample_from_fetched(const at::Tensor& logits, const base::Split& vocab,
                                              int64_t count, const std::vector<SamplingInput>& inputs,
                                              const comm::Group& group) {
  std::vector<std::vector<int64_t>> changed;
  for (const SamplingInput& input : inputs) changed.push_back(changed_ids(input));
  const std::vector<KnownLogits> known = fetch_logits(logits, vocab, count, changed, group);
  std::vector<SampledToken> sampled;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Candidate> candidates = best_candidates(known[i], static_cast<size_t>(count), inputs[i]);
    std::ranges::sort(candidates, {}, &Candidate::id);
    sampled.push_back(sample(candidates, kNaN, inputs[i]));
  }
  return sampled;
}

void fill_from_rows(Message& message, const at::Tensor& logits, int64_t begin,
                    const std::vector<SamplingInput>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor row = row_of(logits, i);
    if (inputs[i].wants_logprob) message.sums[i] = ExpSum::of(row);
    message.set(i, best_candidates(row, begin, message.count, inputs[i]));
  }
}

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
  const bool wants_sums = std::ranges::any_of(inputs, &SamplingInput::wants_logprob);
  if (!logits.is_cpu() && !wants_sums) return sample_from_fetched(logits, vocab, count, inputs, group);
  Message local(inputs.size(), static_cast<size_t>(count));
  fill_from_rows(local, logits.cpu(), vocab.range(group.rank()).begin, inputs);
  return sample_from_candidates(local, inputs, group);
}

}  // namespace shardwise::infer
