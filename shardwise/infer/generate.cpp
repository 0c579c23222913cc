#include "shardwise/infer/generate.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <deque>
#include <list>
#include <span>
#include <utility>

#include "shardwise/base/clock.h"
#include "shardwise/base/profile.h"
#include "shardwise/infer/batch.h"
#include "shardwise/infer/cache.h"
#include "shardwise/infer/sharded_sampler.h"
#include "shardwise/infer/stage_forward.h"
#include "shardwise/infer/token_forward.h"
#include "shardwise/infer/token_ids.h"

namespace shardwise::infer {

using model::DecoderWeights;

namespace {

/// Bytes of weights that a rank packs before a forward: about as many as it reads in 5 ms.
constexpr int64_t kPackedBytes = int64_t{64} << 20;

/// Returns the largest capacity of a request's cache; 1 if there is no request.
int64_t most_cached(const std::vector<Request>& requests) {
  int64_t most = 1;
  for (const Request& request : requests) most = std::max(most, cache_capacity(request));
  return most;
}

/// A forward that this stage has started. The tokens that the last stage sampled are not yet appended.
struct Pass {
  Batch* batch;
  PackedTokens tokens;
  std::vector<SampledToken> sampled;  // on the last stage
};

std::vector<Batch> make_batches(const std::vector<Request>& requests, int64_t sequences, int stages) {
  const base::Split sizes = batch_sizes(std::ssize(requests), sequences, stages);
  std::vector<Batch> batches;
  for (int batch = 0; batch < sizes.ranks(); ++batch)
    batches.emplace_back(requests, sizes.range(batch).size());
  return batches;
}

/// Returns ids, which are exact in a double, and log probabilities, one after the other.
std::vector<double> packed(const std::vector<SampledToken>& sampled) {
  std::vector<double> values;
  for (const auto& [id, logprob] : sampled) values.insert(values.end(), {static_cast<double>(id), logprob});
  return values;
}

std::vector<SampledToken> unpacked(const std::vector<double>& values) {
  std::vector<SampledToken> sampled;
  for (size_t i = 0; i < values.size(); i += 2)
    sampled.push_back({static_cast<int64_t>(values[i]), values[i + 1]});
  return sampled;
}

class BatchGenerator {
 public:
  BatchGenerator(const DecoderWeights& weights, const comm::Group& pipeline,
                 const std::vector<Request>& requests, const std::vector<int64_t>& eos_token_ids,
                 const Batching& batching, const OnToken& on_token)
      : weights_(weights),
        held_(weights.held_parameters()),
        requests_(requests),
        eos_token_ids_(eos_token_ids),
        batching_(batching),
        on_token_(on_token),
        cache_dtype_(cache_dtype("generate", weights, batching.cache_dtype)),
        equal_rows_(weights.rows_with_equal_bits()),
        stage_("generate", weights, pipeline),
        token_forward_(weights, stage_, most_cached(requests)),
        batches_(make_batches(requests, batching.sequences, pipeline.size())) {
    result_.completions.resize(requests.size());
  }

  Generated run() {
    while (start_all()) {
    }
    return std::move(result_);
  }

 private:
  /// Starts a forward of each batch. Returns false if no sequence is left. Every stage starts and finishes
  /// forwards in the same order, with at most as many in flight as there are stages.
  bool start_all() {
    bool has_started = false;
    for (Batch& batch : batches_) {
      while (is_full() || waits_for_tokens(batch)) finish_oldest();
      admit(batch);
      if (batch.empty()) continue;
      start(batch);
      has_started = true;
    }
    return has_started;
  }

  bool is_full() const { return std::ssize(in_flight_) == stage_.stages(); }
  /// Whether a forward in flight samples tokens of the batch.
  bool waits_for_tokens(const Batch& batch) const {
    return std::ranges::any_of(
        in_flight_, [&](const Pass& pass) { return pass.batch == &batch && !pass.tokens.sampling.empty(); });
  }

  /// Packs some of the weights that are still in files, before every forward but the first, so that no token
  /// waits for all of them.
  void pack_some() {
    int64_t left = std::exchange(packed_bytes_, kPackedBytes);
    for (; left > 0 && next_weight_ < held_.size(); ++next_weight_) {
      const parallel::Parameter& weight = *held_[next_weight_].parameter;
      if (!weight.panels || !weight.panels->mapped_rows) continue;
      const base::ProfiledOp profiled("pack");
      quant::pack_(*weight.panels);
      left -= weight.bytes();
    }
  }

  void admit(Batch& batch) {
    for (; next_ < requests_.size() && batch.has_room(); ++next_) {
      const Request& request = requests_[next_];
      if (request.max_new_tokens == 0) continue;
      batch.add({next_, request.prompt, empty_cache(weights_, cache_capacity(request), cache_dtype_)});
    }
  }

  /// Runs this stage's part of one forward of the batch.
  void start(Batch& batch) {
    if (in_flight_.empty()) clock_.restart();
    pack_some();
    Pass pass{&batch, batch.next_forward(batching_, equal_rows_), {}};
    const PackedTokens& tokens = pass.tokens;
    const base::ProfiledOp profiled(tokens.prompt_tokens > 0 ? "prompt" : "token");
    const at::Tensor logits = tokens.is_decoding()
                                  ? token_forward_.logits(as_column(tokens.ids), tokens.sequences)
                                  : next_logits(tokens);
    for (const auto& [cache, count] : tokens.sequences) cache->length += count;
    if (stage_.is_last()) {
      pass.sampled = sampled(tokens, logits);
      stage_.send(packed(pass.sampled));
    }
    in_flight_.push_back(std::move(pass));
  }

  at::Tensor next_logits(const PackedTokens& tokens) const {
    nn::Step step(weights_.group(), std::ssize(tokens.ids));
    step.cached = tokens.sequences;
    return stage_.logits(as_column(tokens.ids), as_column(tokens.sampled_rows).select(1, 0), step);
  }

  static at::Tensor as_column(const std::vector<int64_t>& ids) {
    at::Tensor column = at::empty({std::ssize(ids), 1}, at::kLong);
    std::copy(ids.begin(), ids.end(), column.mutable_data_ptr<int64_t>());
    return column;
  }

  /// Appends the tokens of the forward that was started first, as soon as they have been sampled.
  void finish_oldest() {
    Pass pass = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (!stage_.is_last()) pass.sampled = unpacked(stage_.receive(2 * pass.tokens.sampled_rows.size()));
    int64_t appended = 0;
    const SampledToken* next = pass.sampled.data();
    for (const auto& sequence : pass.tokens.sampling) {
      const size_t rows = 1 + sequence->draft.size();
      appended += append(*pass.batch, sequence, {next, rows});
      next += rows;
    }
    record(pass.tokens.prompt_tokens, appended);
  }

  /// Adds the seconds since the last forward ended, or since this one began if none was in flight.
  void record(int64_t prompt_tokens, int64_t sampled_tokens) {
    Timings& timings = result_.timings;
    timings.prompt_tokens += prompt_tokens;
    timings.generated_tokens += prompt_tokens > 0 ? 0 : sampled_tokens;
    (prompt_tokens > 0 ? timings.prefill_seconds : timings.decode_seconds) += clock_.seconds();
    clock_.restart();
  }

  /// Samples the tokens after the sampled rows.
  std::vector<SampledToken> sampled(const PackedTokens& tokens, const at::Tensor& logits) const {
    if (tokens.sampling.empty()) return {};         // only unfinished prefills
    std::list<std::vector<int64_t>> drafted_texts;  // the texts before the rows of drafted tokens
    std::vector<SamplingInput> inputs;
    for (const auto& sequence : tokens.sampling) {
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
    return sample_tokens(logits, weights_.layout().vocab, inputs, weights_.group());
  }

  /// Appends a sequence's sampled tokens, one for each row, as long as the row before has the token that was
  /// sampled. Returns how many.
  int64_t append(Batch& batch, std::list<Sequence>::iterator sequence,
                 std::span<const SampledToken> sampled) {
    const std::vector<int64_t> draft = std::exchange(sequence->draft, {});
    result_.timings.drafted_tokens += std::ssize(draft);
    for (size_t row = 0; row < sampled.size(); ++row) {
      const auto appended = static_cast<int64_t>(row) + 1;
      result_.timings.accepted_tokens += row > 0;
      if (!append(batch, sequence, sampled[row])) return appended;
      sequence->cache.length = std::ssize(sequence->tokens) - 1;  // without what was drafted wrongly
      if (row == draft.size() || draft[row] != sampled[row].id) return appended;
    }
    return std::ssize(sampled);
  }

  /// Appends one token. Returns whether the sequence continues.
  bool append(Batch& batch, std::list<Sequence>::iterator sequence, const SampledToken& sampled) {
    Completion& result = result_.completions[sequence->request];
    sequence->tokens.push_back(sampled.id);
    result.token_ids.push_back(sampled.id);
    if (requests_[sequence->request].wants_logprobs) result.logprobs.push_back(sampled.logprob);
    const bool continues = !on_token_ || on_token_(sequence->request, sampled.id);
    const bool is_eos = std::ranges::count(eos_token_ids_, sampled.id) > 0;
    const bool is_full = std::ssize(result.token_ids) == requests_[sequence->request].max_new_tokens;
    if (continues && !is_eos && !is_full) return true;
    result.finish_reason = is_eos ? FinishReason::eos : continues ? FinishReason::length : FinishReason::stop;
    batch.remove(sequence);
    return false;
  }

  const DecoderWeights& weights_;
  const nn::UsedParameters held_;
  const std::vector<Request>& requests_;
  const std::vector<int64_t>& eos_token_ids_;
  const Batching& batching_;
  const OnToken& on_token_;
  at::ScalarType cache_dtype_;
  int64_t equal_rows_;        // of one forward, so that drafts change no bit
  size_t next_ = 0;           // the first waiting request
  size_t next_weight_ = 0;    // to be packed
  int64_t packed_bytes_ = 0;  // before the next forward
  StageForward stage_;
  TokenForward token_forward_;
  std::vector<Batch> batches_;
  std::deque<Pass> in_flight_;
  base::Stopwatch clock_;
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
  return generate(weights, comm::Group(weights.group().device()), requests, eos_token_ids, batching,
                  on_token);
}

Generated generate(const DecoderWeights& weights, const comm::Group& pipeline,
                   const std::vector<Request>& requests, const std::vector<int64_t>& eos_token_ids,
                   const Batching& batching, const OnToken& on_token) {
  const c10::InferenceMode inference_mode;
  for (const Request& request : requests) check_request(request, weights.config(), "generate");
  TORCH_CHECK_VALUE(batching.sequences >= 1 && batching.rows >= 1,
                    "generate: batching.sequences and batching.rows must be at least 1; got ",
                    batching.sequences, " and ", batching.rows, " [SW0385]");
  TORCH_CHECK_VALUE(batching.drafted >= 0 && batching.drafted <= kMostDrafted,
                    "generate: batching.drafted must be from 0 to ", kMostDrafted, "; got ", batching.drafted,
                    " [SW0729]");
  return BatchGenerator(weights, pipeline, requests, eos_token_ids, batching, on_token).run();
}

}  // namespace shardwise::infer
