// Generation with a KV cache per sequence and continuous batching.
//
// A forward processes the tokens of several sequences as one packed sequence: one token of each sequence in
// decode, and as many prompt tokens of the sequences in prefill as fit. A finished sequence leaves the batch
// and frees its cache; the next waiting request takes its slot.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "shardwise/infer/request.h"
#include "shardwise/model/decoder.h"

namespace shardwise::infer {

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

/// The same over pipeline stages. `pipeline`: the ranks of all stages with this rank's tensor-parallel index;
/// `weights` are of the stage with this rank's number there, in one run of blocks. The sequences are split
/// into as many batches as there are stages, or as there are sequences, whose forwards are in flight at once:
/// while a stage processes one batch, the next stage processes another. So are the forwards of a long prompt.
/// Cost: also a message [rows, h] of each forward between neighboring stages, and the sampled tokens, 16
/// bytes each, from the last stage to each other one; each stage caches the keys and values of its blocks.
Generated generate(const model::DecoderWeights& weights, const comm::Group& pipeline,
                   const std::vector<Request>& requests, const std::vector<int64_t>& eos_token_ids,
                   const Batching& batching = {}, const OnToken& on_token = {});

/// Checks one request. Throws c10::ValueError as generate() does, with a message that starts with `where`.
void check_request(const Request& request, const config::Config& config, const std::string& where);

}  // namespace shardwise::infer
