// What is generated: prompts, and the limits of the forwards that process them.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "shardwise/infer/sampler.h"
#include "shardwise/infer/token_rules.h"
#include "shardwise/nn/cache.h"

namespace shardwise::infer {

/// A prompt and how to continue it.
struct Request {
  std::vector<int64_t> prompt;  // token ids, at least one
  int64_t max_new_tokens = 0;   // tokens to generate at most
  Sampling sampling = {};       // greedy by default
  bool wants_logprobs = false;  // return the log-probability of each generated token
  TokenRules rules = {};        // none by default
};

/// Returns the capacity of a request's KV cache in tokens. The last generated token is never an input.
int64_t cache_capacity(const Request& request);

constexpr int64_t kMostDrafted = nn::kRowsOneByOne - 1;  // the last sampled token has a row too

/// Limits of one forward. They affect the generated tokens only through rounding.
struct Batching {
  int64_t sequences = 16;  // maximum number of sequences in the batch
  int64_t rows = 512;      // maximum number of tokens in one forward, unless more sequences are in decode
  /// Maximum number of tokens drafted for each sequence in decode (draft.h), at most kMostDrafted. A forward
  /// verifies them together, and keeps those that it would have sampled: the tokens are the same, for one
  /// forward may give several. It drafts only as many as keep the bits that each row has alone
  /// (DecoderWeights::rows_with_equal_bits).
  int64_t drafted = 0;
  /// The dtype of cached keys and values: int8 (at::kChar), or that of the weights.
  std::optional<at::ScalarType> cache_dtype = {};
};

}  // namespace shardwise::infer
