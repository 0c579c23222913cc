#include "shardwise/infer/generate.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <list>

#include "shardwise/base/clock.h"
#include "shardwise/base/profile.h"
#include "shardwise/infer/sharded_sampler.h"
#include "shardwise/infer/token_ids.h"

namespace shardwise::infer {

using model::DecoderWeights;

namespace {

/// A sequence in the batch.
struct Sequence {
  size_t request;
  std::vector<int64_t> tokens;  // prompt and generated tokens
  nn::Cache cache;              // keys and values of the processed tokens
  int64_t scheduled_rows = 0;   // tokens in the next forward

  int64_t unprocessed() const { return static_cast<int64_t>(tokens.size()) - cache.length; }
  /// Whether the next forward gives the logits of the next token.
  bool finishes_input() const { return unprocessed() == scheduled_rows; }
};

class BatchGenerator {
 public:
  BatchGenerator(const DecoderWeights& weights, const std::vector<Request>& requests,
                 const std::vector<int64_t>& eos_token_ids, const Batching& batching, const OnToken& on_token)
      : weights_(weights),
        requests_(requests),
        eos_token_ids_(eos_token_ids),
        batching_(batching),
        on_token_(on_token) {
    result_.completions.resize(requests.size());
  }

  Generated run() {
    for (admit(); !batch_.empty(); admit()) {
      const base::Stopwatch clock;
      schedule_rows();
      const int64_t prompt_tokens = prompt_rows();
      const base::ProfiledOp profiled(prompt_tokens > 0 ? "prompt" : "token");
      const Outcome outcome = forward();
      append_sampled(outcome);
      record(prompt_tokens, std::ssize(outcome.sequences), clock.seconds());
    }
    return std::move(result_);
  }

 private:
  void admit() {
    for (; next_ < requests_.size() && std::ssize(batch_) < batching_.sequences; ++next_) {
      const Request& request = requests_[next_];
      if (request.max_new_tokens == 0) continue;
      const auto& kv_heads = weights_.layout().kv_heads;
      batch_.push_back(
          {next_, request.prompt,
           nn::Cache::empty(weights_.config().num_hidden_layers,
                            kv_heads.range(weights_.group().rank()).size(), weights_.config().head_dim,
                            cache_capacity(request), weights_.dtype())});
    }
  }

  /// Assigns rows to sequences in decode first, so that they never wait for another sequence's prefill.
  void schedule_rows() {
    int64_t available = batching_.rows;
    for (Sequence& sequence : batch_) {
      sequence.scheduled_rows = sequence.unprocessed() == 1 ? 1 : 0;
      available -= sequence.scheduled_rows;
    }
    for (Sequence& sequence : batch_) {
      if (sequence.unprocessed() == 1) continue;
      sequence.scheduled_rows = std::min(sequence.unprocessed(), std::max<int64_t>(available, 0));
      available -= sequence.scheduled_rows;
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

  /// The sequences whose next token is sampled, and its logits.
  struct Outcome {
    std::vector<std::list<Sequence>::iterator> sequences;
    at::Tensor logits;  // [sequences, v/t]
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
      rows.push_back({&sequence->cache, sequence->scheduled_rows});
    }
    nn::Step step(weights_.group(), std::ssize(ids));
    step.cached = std::move(rows);
    const model::Decoder<nn::Invariant> decoder(weights_);
    outcome.logits =
        decoder.next_logits(as_column(ids), as_column(last_rows).select(1, 0), step).local().select(1, 0);
    for (const auto& [cache, count] : step.cached) cache->length += count;
    return outcome;
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

  void append_sampled(const Outcome& outcome) {
    if (outcome.sequences.empty()) return;  // only unfinished prefills
    std::vector<SamplingInput> inputs;
    for (const auto& sequence : outcome.sequences) {
      const Request& request = requests_[sequence->request];
      const PartialSequence so_far{sequence->tokens, std::ssize(request.prompt), request.max_new_tokens,
                                   eos_token_ids_};
      inputs.push_back(
          {&sequence->tokens, request.sampling, request.wants_logprobs, choice_of(request.rules, so_far)});
    }
    const std::vector<SampledToken> sampled =
        sample_tokens(outcome.logits, weights_.layout().vocab, inputs, weights_.group());
    for (size_t i = 0; i < sampled.size(); ++i) append(outcome.sequences[i], sampled[i]);
  }

  void append(std::list<Sequence>::iterator sequence, const SampledToken& sampled) {
    Completion& result = result_.completions[sequence->request];
    sequence->tokens.push_back(sampled.id);
    result.token_ids.push_back(sampled.id);
    if (requests_[sequence->request].wants_logprobs) result.logprobs.push_back(sampled.logprob);
    const bool continues = !on_token_ || on_token_(sequence->request, sampled.id);
    const bool is_eos = std::ranges::count(eos_token_ids_, sampled.id) > 0;
    const bool is_full = std::ssize(result.token_ids) == requests_[sequence->request].max_new_tokens;
    if (continues && !is_eos && !is_full) return;
    result.finish_reason = is_eos ? FinishReason::eos : continues ? FinishReason::length : FinishReason::stop;
    batch_.erase(sequence);
  }

  const DecoderWeights& weights_;
  const std::vector<Request>& requests_;
  const std::vector<int64_t>& eos_token_ids_;
  const Batching& batching_;
  const OnToken& on_token_;
  size_t next_ = 0;  // the first waiting request
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
  return BatchGenerator(weights, requests, eos_token_ids, batching, on_token).run();
}

}  // namespace shardwise::infer
