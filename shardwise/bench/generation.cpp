#include "shardwise/bench/generation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "shardwise/bench/probes.h"
#include "shardwise/bench/synchronizer.h"
#include "shardwise/checkpoint/load_cost.h"
#include "shardwise/infer/sharded_sampler.h"

namespace shardwise::bench {
namespace {

constexpr int64_t kNewTokens = 256, kPiece = 512, kFirstToken = 7;

void fill_randomly(const kernels::StoredHeads& heads, at::ScalarType dtype) {
  const at::Tensor values = at::empty(heads.rows.sizes(), dtype).normal_();
  kernels::store_rows_(heads, /*position=*/0, kernels::NewRows::of(values));
}

}  // namespace

Texts::Texts(const model::DecoderWeights& weights, const GenerationCase& of)
    : weights_(weights), context_(of.context) {
  const config::Config& config = weights.config();
  const int64_t kv_heads = weights.layout().kv_heads.range(weights.group().rank()).size();
  for (int64_t i = 0; i < of.texts; ++i) {
    caches_.push_back(nn::Cache::empty({0, config.num_hidden_layers}, kv_heads, config.head_dim,
                                       of.context + kNewTokens, of.cache_dtype.value_or(weights.dtype())));
    for (const auto& [keys, values] : caches_.back().layers) {
      fill_randomly(keys, weights.dtype());
      fill_randomly(values, weights.dtype());
    }
  }
  start();
}

void Texts::start() {
  for (nn::Cache& cache : caches_) cache.length = context_;
  last_.assign(caches_.size(), kFirstToken);
}

void Texts::forward(const std::vector<nn::CachedRows>& batch) {
  const c10::InferenceMode inference_mode;
  nn::Step step(weights_.group(), nn::rows_of(batch));
  step.cached = batch;
  std::vector<int64_t> ids, ends;
  for (size_t i = 0; i < batch.size(); ++i) {
    ids.insert(ids.end(), static_cast<size_t>(batch[i].rows), last_[i]);
    ends.push_back(std::ssize(ids) - 1);
  }
  const at::Tensor logits =
      model::Decoder<nn::Invariant>(weights_)
          .next_logits(at::tensor(ids, at::kLong).unsqueeze(1), at::tensor(ends, at::kLong), step)
          .local();
  for (const nn::CachedRows& rows : batch) rows.cache->length += rows.rows;
  const std::vector<int64_t> none;
  const std::vector<infer::SamplingInput> inputs(batch.size(), {&none, {}});
  const auto tokens =
      infer::sample_tokens(logits.select(1, 0), weights_.layout().vocab, inputs, weights_.group());
  for (size_t i = 0; i < tokens.size(); ++i) last_[i] = tokens[i].id;
}

void Texts::decode() {
  if (caches_.front().length == caches_.front().capacity()) start();
  std::vector<nn::CachedRows> batch;
  for (nn::Cache& cache : caches_) batch.push_back({&cache, 1});
  forward(batch);
}

void Texts::prefill() {
  for (nn::Cache& cache : caches_) {
    for (cache.length = 0; cache.length < context_;)
      forward({{&cache, std::min(kPiece, context_ - cache.length)}});
  }
}

uint64_t read_once(const model::DecoderWeights& weights) {
  uint64_t sum = 0;
  for (const nn::UsedParameter& used : weights.used_parameters()) sum += read_once(*used.parameter);
  return sum;
}

GenerationTimes measure_generation(const model::DecoderWeights& weights, Phase phase,
                                   const std::vector<GenerationCase>& cases, double seconds,
                                   const std::function<void(int64_t, int64_t)>& on_progress) {
  Synchronizer synchronizer = synchronizer_of(weights.group());
  if (weights.group().rank() == 0) synchronizer.after_repetition = on_progress;
  std::deque<Texts> texts;
  std::vector<TimedCall> calls{{"read", [&] { read_once(weights); }, /*rewrite=*/{}}};
  for (const GenerationCase& of : cases) {
    Texts& some = texts.emplace_back(weights, of);
    calls.push_back({"step", [&some, phase] { some.step(phase); }, /*rewrite=*/{}});
  }
  const std::vector<Measured> times = measure(calls, CacheState::warm, seconds, synchronizer);
  GenerationTimes result{checkpoint::weight_bytes(weights), times[0], {}};
  for (size_t i = 0; i < cases.size(); ++i) result.cases.push_back({cases[i], times[1 + i]});
  return result;
}

base::Profile profile_generation(const model::DecoderWeights& weights, Phase phase,
                                 const GenerationCase& of) {
  constexpr int kTokens = 16, kPrompts = 3;
  Texts texts(weights, of);
  texts.step(phase);
  base::Profile profile;
  {
    const base::Profile::Recording recording(profile);
    for (int i = 0; i < (phase == Phase::decode ? kTokens : kPrompts); ++i) {
      const base::ProfiledOp profiled(phase == Phase::decode ? "token" : "prompt");
      texts.step(phase);
    }
  }
  return profile;
}

}  // namespace shardwise::bench
