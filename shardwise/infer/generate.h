// Generation with a KV cache per sequence and continuous batching.
//
// A forward processes the tokens of several sequences as one packed sequence: one token of each sequence in
// decode, and as many prompt tokens of the sequences in prefill as fit. A finished sequence leaves the batch
// and frees its cache; the next waiting request takes its slot.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "shardwise/infer/sampler.h"
#include "shardwise/infer/token_rules.h"
#include "shardwise/model/decoder.h"

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

/// Why a sequence ended.
enum class FinishReason {
  length,  // max_new_tokens were generated
  eos,     // the last token is an EOS token
  stop,    // OnToken returned false
};

/// The generated tokens of one request.
struct Completion {
  std::vector<int64_t> token_ids;  // without the prompt
  std::vector<double> logprobs;    // of the model's unmodified distribution; empty unless requested
  FinishReason finish_reason = FinishReason::length;  // why the last token is the last
};

/// Tokens and seconds of the forwards. Prefill: forwards with prompt tokens of at least one sequence. Decode:
/// the others.
struct Timings {
  int64_t prompt_tokens = 0;     // of all requests
  int64_t generated_tokens = 0;  // by decode forwards only
  double prefill_seconds = 0;    // in forwards with prompt tokens
  double decode_seconds = 0;     // in the other forwards
  int64_t drafted_tokens = 0;    // verified by decode forwards
  int64_t accepted_tokens = 0;   // of these, those that were generated
};

/// Called for every new token, on every rank in the same order. Returns whether to continue the sequence,
/// equal on every rank. An exception from it leaves `generate` on this rank only: the caller must then abort
/// the group (Group::abort).
using OnToken = std::function<bool(size_t request, int64_t id)>;

/// The results of generate().
struct Generated {
  std::vector<Completion> completions;  // by request
  Timings timings;                      // of all requests together
};

/// Generates max_new_tokens tokens for each prompt, or fewer if a token of `eos_token_ids` is generated
/// (collective). Every rank samples from the same values, so all ranks return the same token ids.
/// Cost: per forward two all_reduces per layer, the embedding's all_reduce and sample_tokens' all_gather; a
/// KV cache of 2·L·k·(prompt + max_new_tokens)·d elements for each sequence in the batch (int8: and a float
/// for every d). Throws c10::ValueError if a prompt is empty or contains an id outside the vocabulary, if a
/// sequence exceeds max_position_embeddings, or if an option is out of range; on every rank, before any
/// collective.
Generated generate(const model::DecoderWeights& weights, const std::vector<Request>& requests,
                   const std::vector<int64_t>& eos_token_ids, const Batching& batching = {},
                   const OnToken& on_token = {});

/// Checks one request. Throws c10::ValueError as generate() does, with a message that starts with `where`.
void check_request(const Request& request, const config::Config& config, const std::string& where);

}  // namespace shardwise::infer
