#include "shardwise/infer/generate.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <list>
#include <span>
#include <utility>

#include "shardwise/base/clock.h"
#include "shardwise/base/profile.h"
#include "shardwise/infer/cache.h"
#include "shardwise/infer/draft.h"
#include "shardwise/infer/sharded_sampler.h"
#include "shardwise/infer/token_forward.h"
#include "shardwise/infer/token_ids.h"

namespace shardwise::infer {

using model::DecoderWeights;

namespace {

/// A sequence in the batch.
struct Sequence {
  size_t request;
  std::vector<int64_t> tokens;      // prompt and generated tokens
  nn::Cache cache;                  // keys and values of the processed tokens
  int64_t scheduled_rows = 0;       // tokens in the next forward, without drafted ones
  std::vector<int64_t> draft = {};  // in the next forward after them

  int64_t unprocessed() const { return static_cast<int64_t>(tokens.size()) - cache.length; }
  /// Whether the next forward gives the logits of the next token.
  bool finishes_input() const { return unprocessed() == scheduled_rows; }
};

/// Bytes of weights that a rank packs before a forward: about as many as it reads in 5 ms.
constexpr int64_t kPackedBytes = int64_t{64} << 20;

/// Returns the largest capacity of a request's cache; 1 if there is no request.
int64_t most_cached(const std::vector<Request>& requests) {
  int64_t most = 1;
  for (const Request& request : requests) most = std::max(most, cache_capacity(request));
  return most;
}

class BatchGenerator {
 public:
  BatchGenerator(const DecoderWeights& weights, const std::vector<Request>& requests,
                 const std::vector<int64_t>& eos_token_ids, const Batching& batching, const OnToken& on_token)
      : weights_(weights),
        requests_(requests),
        eos_token_ids_(eos_token_ids),
        batching_(batching),
        on_token_(on_token),
        cache_dtype_(cache_dtype("generate", weights, batching.cache_dtype)),
        equal_rows_(weights.rows_with_equal_bits()),
        token_forward_(weights, most_cached(requests)) {
    result_.completions.resize(requests.size());
  }

  Generated run() {
    for (admit(); !batch_.empty(); admit()) {
      const base::Stopwatch clock;
      pack_some();
      schedule_rows();
      const int64_t prompt_tokens = prompt_rows();
      const base::ProfiledOp profiled(prompt_tokens > 0 ? "prompt" : "token");
      const Outcome outcome = forward();
      const int64_t generated = append_sampled(outcome);
      record(prompt_tokens, generated, clock.seconds());
    }
    return std::move(result_);
  }

 private:
  /// Packs some of the weights that are still in files, before every forward but the first, so that no token
  /// waits for all of them.
  void pack_some() {
    const nn::UsedParameters& weights = weights_.used_parameters();
    int64_t left = std::exchange(packed_bytes_, kPackedBytes);
    for (; left > 0 && next_weight_ < weights.size(); ++next_weight_) {
      const parallel::Parameter& weight = *weights[next_weight_].parameter;
      if (!weight.panels || !weight.panels->mapped_rows) continue;
      const base::ProfiledOp profiled("pack");
      quant::pack_(*weight.panels);
      left -= weight.bytes();
    }
  }

  void admit() {
    for (; next_ < requests_.size() && std::ssize(batch_) < batching_.sequences; ++next_) {
      const Request& request = requests_[next_];
      if (request.max_new_tokens == 0) continue;
      batch_.push_back({next_, request.prompt, empty_cache(weights_, cache_capacity(request), cache_dtype_)});
    }
  }

  /// Assigns rows to sequences in decode first, so that they never wait for another sequence's prefill.
  void schedule_rows() {
    int64_t available = batching_.rows;
    for (Sequence& sequence : batch_) {
      sequence.scheduled_rows = sequence.unprocessed() == 1 ? 1 : 0;
      available -= sequence.scheduled_rows;
    }
    int64_t waiting = 0;
    for (Sequence& sequence : batch_) {
      if (sequence.unprocessed() == 1) continue;
      sequence.scheduled_rows = std::min(sequence.unprocessed(), std::max<int64_t>(available, 0));
      available -= sequence.scheduled_rows;
      ++waiting;
    }
    draft(waiting == 0 ? std::min(batching_.rows, equal_rows_) - std::ssize(batch_) : 0);
  }

  /// Drafts at most `available` tokens, shared evenly by the sequences, of which all are in decode or none.
  void draft(int64_t available) {
    for (Sequence& sequence : batch_) {
      const Request& request = requests_[sequence.request];
      const int64_t left = std::ssize(request.prompt) + request.max_new_tokens - std::ssize(sequence.tokens);
      const int64_t share = std::max<int64_t>(available, 0) / std::ssize(batch_);
      sequence.draft = draft_of(sequence.tokens, std::min({batching_.drafted, share, left - 1}));
    }
  }

  int64_t prompt_rows() const {
    int64_t rows = 0;
    for (const Sequence& sequence : batch_) {
      const bool is_decoding = sequence.cache.length >= std::ssize(requests_[sequence.request].prompt);
      rows += is_decoding ? 0 : sequence.scheduled_rows;
    }
    return rows;
  }

  /// The sequences whose next tokens are sampled, and the logits: of the next token, and of those after each
  /// drafted one.
  struct Outcome {
    std::vector<std::list<Sequence>::iterator> sequences;
    at::Tensor logits;  // [sequences and drafted tokens, v/t]
  };

  /// Runs one forward over the scheduled rows.
  Outcome forward() {
    std::vector<nn::CachedRows> rows;
    std::vector<int64_t> ids, last_rows;
    Outcome outcome;
    for (auto sequence = batch_.begin(); sequence != batch_.end(); ++sequence) {
      if (sequence->scheduled_rows == 0) continue;
      const auto first = sequence->tokens.begin() + sequence->cache.length;
      ids.insert(ids.end(), first, first + sequence->scheduled_rows);
      if (sequence->finishes_input()) {
        last_rows.push_back(std::ssize(ids) - 1);
        outcome.sequences.push_back(sequence);
      }
      for (const int64_t id : sequence->draft) {
        last_rows.push_back(std::ssize(ids));
        ids.push_back(id);
      }
      rows.push_back({&sequence->cache, sequence->scheduled_rows + std::ssize(sequence->draft)});
    }
    outcome.logits = is_decoding(rows, last_rows) ? token_forward_.logits(as_column(ids), rows)
                                                  : next_logits(ids, last_rows, rows);
    for (const auto& [cache, count] : rows) cache->length += count;
    return outcome;
  }

  /// Whether sequences have few rows, and each row is followed by a sampled token.
  static bool is_decoding(const std::vector<nn::CachedRows>& rows, const std::vector<int64_t>& last_rows) {
    const auto has_few = [](const nn::CachedRows& one) { return one.rows <= nn::kRowsOneByOne; };
    return std::ssize(last_rows) == nn::rows_of(rows) && std::ranges::all_of(rows, has_few);
  }

  at::Tensor next_logits(const std::vector<int64_t>& ids, const std::vector<int64_t>& last_rows,
                         const std::vector<nn::CachedRows>& rows) const {
    nn::Step step(weights_.group(), std::ssize(ids));
    step.cached = rows;
    const model::Decoder<nn::Invariant> decoder(weights_);
    return decoder.next_logits(as_column(ids), as_column(last_rows).select(1, 0), step).local().select(1, 0);
  }

  void record(int64_t prompt_tokens, int64_t sampled_tokens, double seconds) {
    Timings& timings = result_.timings;
    timings.prompt_tokens += prompt_tokens;
    timings.generated_tokens += prompt_tokens > 0 ? 0 : sampled_tokens;
    (prompt_tokens > 0 ? timings.prefill_seconds : timings.decode_seconds) += seconds;
  }

  static at::Tensor as_column(const std::vector<int64_t>& ids) {
    at::Tensor column = at::empty({std::ssize(ids), 1}, at::kLong);
    std::copy(ids.begin(), ids.end(), column.mutable_data_ptr<int64_t>());
    return column;
  }

  /// Samples the tokens of all rows, and appends to each sequence those up to the first that was not drafted.
  /// Returns how many it appended.
  int64_t append_sampled(const Outcome& outcome) {
    if (outcome.sequences.empty()) return 0;        // only unfinished prefills
    std::list<std::vector<int64_t>> drafted_texts;  // the texts before the rows of drafted tokens
    std::vector<SamplingInput> inputs;
    for (const auto& sequence : outcome.sequences) {
      const Request& request = requests_[sequence->request];
      const auto add_input = [&](const std::vector<int64_t>& text) {
        const PartialSequence so_far{text, std::ssize(request.prompt), request.max_new_tokens,
                                     eos_token_ids_};
        inputs.push_back({&text, request.sampling, request.wants_logprobs, choice_of(request.rules, so_far)});
      };
      add_input(sequence->tokens);
      for (const int64_t id : sequence->draft) {
        drafted_texts.push_back(*inputs.back().tokens);
        drafted_texts.back().push_back(id);
        add_input(drafted_texts.back());
      }
    }
    const std::vector<SampledToken> sampled =
        sample_tokens(outcome.logits, weights_.layout().vocab, inputs, weights_.group());
    int64_t appended = 0;
    const SampledToken* next = sampled.data();
    for (const auto& sequence : outcome.sequences) {
      const size_t rows = 1 + sequence->draft.size();
      appended += append(sequence, {next, rows});
      next += rows;
    }
    return appended;
  }

  /// Appends a sequence's sampled tokens, one for each row, as long as the row before has the token that was
  /// sampled. Returns how many.
  int64_t append(std::list<Sequence>::iterator sequence, std::span<const SampledToken> sampled) {
    const std::vector<int64_t> draft = std::exchange(sequence->draft, {});
    result_.timings.drafted_tokens += std::ssize(draft);
    for (size_t row = 0; row < sampled.size(); ++row) {
      const auto appended = static_cast<int64_t>(row) + 1;
      result_.timings.accepted_tokens += row > 0;
      if (!append(sequence, sampled[row])) return appended;
      sequence->cache.length = std::ssize(sequence->tokens) - 1;  // without what was drafted wrongly
      if (row == draft.size() || draft[row] != sampled[row].id) return appended;
    }
    return std::ssize(sampled);
  }

  /// Appends one token. Returns whether the sequence continues.
  bool append(std::list<Sequence>::iterator sequence, const SampledToken& sampled) {
    Completion& result = result_.completions[sequence->request];
    sequence->tokens.push_back(sampled.id);
    result.token_ids.push_back(sampled.id);
    if (requests_[sequence->request].wants_logprobs) result.logprobs.push_back(sampled.logprob);
    const bool continues = !on_token_ || on_token_(sequence->request, sampled.id);
    const bool is_eos = std::ranges::count(eos_token_ids_, sampled.id) > 0;
    const bool is_full = std::ssize(result.token_ids) == requests_[sequence->request].max_new_tokens;
    if (continues && !is_eos && !is_full) return true;
    result.finish_reason = is_eos ? FinishReason::eos : continues ? FinishReason::length : FinishReason::stop;
    batch_.erase(sequence);
    return false;
  }

  const DecoderWeights& weights_;
  const std::vector<Request>& requests_;
  const std::vector<int64_t>& eos_token_ids_;
  const Batching& batching_;
  const OnToken& on_token_;
  at::ScalarType cache_dtype_;
  int64_t equal_rows_;        // of one forward, so that drafts change no bit
  size_t next_ = 0;           // the first waiting request
  size_t next_weight_ = 0;    // to be packed
  int64_t packed_bytes_ = 0;  // before the next forward
  TokenForward token_forward_;
  std::list<Sequence> batch_;
  Generated result_;
};

}  // namespace

void check_request(const Request& request, const config::Config& config, const std::string& where) {
  const auto& [prompt, max_new_tokens, sampling, wants_logprobs, rules] = request;
  TORCH_CHECK_VALUE(!prompt.empty(), where, ": the prompt must have at least one token; got none [SW0205]");
  check_token_ids(prompt, config, where + ": the prompt's");
  TORCH_CHECK_VALUE(max_new_tokens >= 0, where, ": max_new_tokens must not be negative; got ", max_new_tokens,
                    " [SW0384]");
  TORCH_CHECK_VALUE(max_new_tokens <= config.max_position_embeddings - std::ssize(prompt), where,
                    ": prompt and new tokens must fit max_position_embeddings, ",
                    config.max_position_embeddings, "; got ", prompt.size(), " and ", max_new_tokens,
                    " [SW0204]");
  check_sampling(sampling, where);
  check_token_rules(rules, config.vocab_size, where);
}

int64_t cache_capacity(const Request& request) {
  return std::ssize(request.prompt) + request.max_new_tokens - 1;
}

Generated generate(const DecoderWeights& weights, const std::vector<Request>& requests,
                   const std::vector<int64_t>& eos_token_ids, const Batching& batching,
                   const OnToken& on_token) {
  const c10::InferenceMode inference_mode;
  for (const Request& request : requests) check_request(request, weights.config(), "generate");
  TORCH_CHECK_VALUE(batching.sequences >= 1 && batching.rows >= 1,
                    "generate: batching.sequences and batching.rows must be at least 1; got ",
                    batching.sequences, " and ", batching.rows, " [SW0385]");
  TORCH_CHECK_VALUE(batching.drafted >= 0 && batching.drafted <= kMostDrafted,
                    "generate: batching.drafted must be from 0 to ", kMostDrafted, "; got ", batching.drafted,
                    " [SW0729]");
  return BatchGenerator(weights, requests, eos_token_ids, batching, on_token).run();
}

}  // namespace shardwise::infer
