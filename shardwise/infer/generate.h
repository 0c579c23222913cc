// Continuing texts: a batch of them, each with its keys and values cached.
//
// A forward takes rows of several texts, packed one behind the other: one row of each text that is being
// continued, and of those whose prompts are still read as many as fit. A text that is finished leaves the
// batch and frees its cache; the next one waiting takes its place.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "shardwise/infer/sampler.h"
#include "shardwise/model/decoder.h"

namespace shardwise::infer {

struct Request {
  std::vector<int64_t> prompt;
  int64_t max_new_tokens = 0;
  Sampling sampling = {};
  bool wants_logprobs = false;
};

/// Tokens that its cache has room for: the last one chosen is never an input.
int64_t cache_capacity(const Request& request);

/// Bounds of a forward. They change no token but by rounding.
struct Batching {
  int64_t texts = 16;  // continued at once
  int64_t rows = 512;  // tokens in one forward, unless more texts are being continued
};

enum class FinishReason {
  length,  // max_new_tokens
  end,     // a token that ends texts; it is the last
  stop,    // by the caller's wish
};

struct Completion {
  std::vector<int64_t> ids;
  std::vector<double> logprobs;  // of each, under the model's own distribution; none unless wanted
  FinishReason finish_reason = FinishReason::length;
};

/// What the forwards took. Reading: at least one text's prompt was in the batch.
struct Timings {
  int64_t read_tokens = 0, written_tokens = 0;  // written: by forwards that read nothing
  double read_seconds = 0, written_seconds = 0;
};

/// Sees every new token as soon as it is chosen, on every rank in the same order; returns whether the text
/// goes on, the same on every rank. What it throws leaves `generate` on this rank alone: the caller then
/// tells the others (Group::abort).
using OnToken = std::function<bool(size_t request, int64_t id)>;

struct Generated {
  std::vector<Completion> texts;  // by request
  Timings timings;
};

/// Collective. The tokens that follow each prompt: max_new_tokens of them, or fewer where one ends the text
/// (`end_ids`). Every rank chooses from the same numbers, so all return the same ids. Cost: per forward two
/// all_reduces a layer, the embedding's, and what choose_tokens gathers; a cache of
/// 2·layers·k·(prompt + max_new_tokens)·d elements for each text in the batch. Errors: c10::ValueError when a
/// prompt is empty or holds an id that is none, a text would outgrow max_position_embeddings, or a number is
/// out of its range; the same on every rank, before any collective.
Generated generate(const model::DecoderWeights& weights, const std::vector<Request>& requests,
                   const std::vector<int64_t>& end_ids, const Batching& batching = {},
                   const OnToken& on_token = {});

/// Errors: c10::ValueError, as generate's, beginning with `where`.
void check_request(const Request& request, const model::Config& config, const std::string& where);

}  // namespace shardwise::infer
