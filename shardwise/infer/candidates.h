// From each rank's slice of the logits to the tokens that may be chosen, the same on every rank.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/comm/group.h"
#include "shardwise/infer/sampler.h"

namespace shardwise::infer {

/// One text whose next token is due.
struct Due {
  const std::vector<int64_t>* text;  // its tokens so far
  Sampling sampling;
  bool wants_logprob = false;
};

struct Choice {
  int64_t id;
  double logprob;  // log-softmax of the logits as the model gave them; NaN where not wanted
};

/// Collective: the next token of each text. `logits` [n, v/t], this rank's columns, one row a text. Where the
/// samplings allow it each rank sends its few best alone, 24 bytes each, and where a log probability is
/// wanted 16 bytes a text in another all_gather; else the whole rows are gathered. Errors: those of
/// choose_token, on every rank.
std::vector<Choice> choose_tokens(const at::Tensor& logits, const base::Split& vocab,
                                  const std::vector<Due>& due, const comm::Group& group);

}  // namespace shardwise::infer
