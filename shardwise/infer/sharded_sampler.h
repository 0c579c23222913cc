// Samples the next tokens from vocab-sharded logits. Every rank returns the same tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/comm/group.h"
#include "shardwise/infer/candidates.h"

namespace shardwise::infer {

/// A sampled token and its log probability.
struct SampledToken {
  int64_t id;
  double logprob;  // log-softmax of the unmodified logits; NaN unless wants_logprob
};

/// Samples the next token of each sequence (collective).
/// Shapes: `logits` [n, v/t] S(1), one row per sequence.
/// Cost: one all_gather of each rank's best candidates, 24 bytes each, if every sampling bounds their number;
/// else of the full rows. Log probabilities cost another all_gather of 16 bytes per sequence. From a device
/// the host fetches those candidates, or the rank's rows for log probabilities.
/// Errors: as sample_token's, on every rank.
std::vector<SampledToken> sample_tokens(const at::Tensor& logits, const base::Split& vocab,
                                        const std::vector<SamplingInput>& inputs, const comm::Group& group);

}  // namespace shardwise::infer
