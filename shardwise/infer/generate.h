// Continuing a text in the simplest way: one whole forward a token, nothing cached.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "shardwise/infer/sampler.h"
#include "shardwise/model/decoder.h"

namespace shardwise::infer {

/// Sees every new token as soon as it is chosen. Called on every rank.
using OnToken = std::function<void(int64_t id)>;

/// Collective. The tokens that follow `prompt`: `max_new_tokens` of them, or fewer where one ends the text
/// (config.eos_token_id; it is the last of the result). Every rank chooses from the same bits, so all return
/// the same. Cost: a forward of the whole text per token; the last position's logits are gathered. Errors:
/// c10::ValueError when the prompt is empty, holds an id that is none, or the text would outgrow
/// max_position_embeddings, or for negative numbers; the same on every rank, before any collective.
std::vector<int64_t> generate(const model::DecoderWeights& weights, const std::vector<int64_t>& prompt,
                              int64_t max_new_tokens, const Sampling& sampling, const OnToken& on_token = {});

}  // namespace shardwise::infer
