#include "shardwise/infer/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

namespace shardwise::infer {

using model::DecoderWeights;

namespace {

void check(const model::Config& config, const std::vector<int64_t>& prompt, int64_t max_new_tokens,
           const Sampling& sampling) {
  TORCH_CHECK_VALUE(!prompt.empty(), "generate: the prompt must hold a token; got none");
  for (const int64_t id : prompt) {
    TORCH_CHECK_VALUE(id >= 0 && id < config.vocab_size,
                      "generate: the prompt's ids must lie from 0 to below ", config.vocab_size, "; got ",
                      id);
  }
  TORCH_CHECK_VALUE(max_new_tokens >= 0, "generate: max_new_tokens must not be negative; got ",
                    max_new_tokens);
  const auto length = static_cast<int64_t>(prompt.size());
  TORCH_CHECK_VALUE(max_new_tokens <= config.max_position_embeddings - length,
                    "generate: prompt and new tokens must fit max_position_embeddings, ",
                    config.max_position_embeddings, "; got ", length, " and ", max_new_tokens);
  TORCH_CHECK_VALUE(sampling.temperature >= 0 && std::isfinite(sampling.temperature),
                    "generate: temperature must be 0 or more; got ", sampling.temperature);
}

/// [s, 1]
at::Tensor as_batch(const std::vector<int64_t>& text) {
  at::Tensor ids = at::empty({static_cast<int64_t>(text.size()), 1}, at::kLong);
  std::copy(text.begin(), text.end(), ids.mutable_data_ptr<int64_t>());
  return ids;
}

/// Of the token after `text`: [v], the same bits on every rank.
at::Tensor next_logits(const DecoderWeights& weights, const std::vector<int64_t>& text) {
  const nn::Step step(weights.group(), static_cast<int64_t>(text.size()));
  const at::Tensor logits = model::Decoder<nn::Invariant>(weights).logits(as_batch(text), step).local();
  const at::Tensor last_shard_v = logits.select(0, -1).squeeze(0);
  return weights.group().all_gather(last_shard_v, weights.layout().vocab);
}

}  // namespace

std::vector<int64_t> generate(const DecoderWeights& weights, const std::vector<int64_t>& prompt,
                              int64_t max_new_tokens, const Sampling& sampling, const OnToken& on_token) {
  const at::NoGradGuard no_grad;
  const model::Config& config = weights.config();
  check(config, prompt, max_new_tokens, sampling);
  std::vector<int64_t> text = prompt;
  const size_t end = prompt.size() + max_new_tokens;
  bool is_over = false;
  while (text.size() < end && !is_over) {
    const int64_t id = choose_token(next_logits(weights, text), sampling, static_cast<int64_t>(text.size()));
    text.push_back(id);
    if (on_token) on_token(id);
    is_over = std::count(config.eos_token_id.begin(), config.eos_token_id.end(), id) > 0;
  }
  return {text.begin() + static_cast<int64_t>(prompt.size()), text.end()};
}

}  // namespace shardwise::infer
