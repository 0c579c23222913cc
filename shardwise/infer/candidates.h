// The tokens of one rank's logits among which the next token is sampled.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/infer/known_logits.h"
#include "shardwise/infer/sampler.h"
#include "shardwise/infer/token_rules.h"

namespace shardwise::infer {

/// A sequence whose next token is sampled.
struct SamplingInput {
  const std::vector<int64_t>* tokens;  // prompt and generated tokens
  Sampling sampling;
  bool wants_logprob = false;
  TokenChoice choice = {};  // what the request's rules say about the token
};

/// A token with its logit without and with the repetition penalty and the rules.
struct Candidate {
  int64_t id;
  double logit, penalized;
};

/// Returns every token of `logits` [v], whose ids begin at 0, in ascending order.
std::vector<Candidate> all_candidates(const at::Tensor& logits, const SamplingInput& input);

/// Returns the `count` best tokens of `logits` [v], whose ids begin at `begin`, in any order and without
/// those that the rules exclude; or only one that is NaN if there is one, so that every rank reports it.
/// Cost: one pass over the logits in their own dtype, and a comparison for each token that is changed.
std::vector<Candidate> best_candidates(const at::Tensor& logits, int64_t begin, size_t count,
                                       const SamplingInput& input);

/// As above, of a row of which the host knows the logits of changed_ids and the `count` highest of the
/// others.
std::vector<Candidate> best_candidates(const KnownLogits& logits, size_t count, const SamplingInput& input);

/// Returns the tokens whose logits the repetition penalty or the rules change, in ascending order.
std::vector<int64_t> changed_ids(const SamplingInput& input);

}  // namespace shardwise::infer
