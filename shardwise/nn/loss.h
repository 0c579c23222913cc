// Cross-entropy over vocabulary-sharded logits, which are never gathered.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

inline constexpr int64_t kIgnoreIndex = -100;

/// Σ over valid tokens of −log softmax(logits)[label], divided by `valid_tokens` — those of the whole
/// optimizer step, so that micro-batches add up to the step's mean. Shapes: `logits` [s, b, v/t] S<−1>,
/// `labels` [s, b] int64 whole on every rank → scalar I. Forward: all_reduce(max) of s·b and all_reduce(sum)
/// of 2·s·b elements. Backward: nothing. Saved: logits and one fp32 per token. Source: Megatron-LM §3
/// (embedding), with the log-sum-exp shifted globally.
Placed<Invariant> cross_entropy(const Placed<Sharded<kFeature>>& logits, const at::Tensor& labels,
                                const base::Split& vocab, double valid_tokens, const Step& step);

}  // namespace shardwise::nn
