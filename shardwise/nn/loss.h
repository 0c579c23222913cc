// Cross-entropy over vocabulary-sharded logits, which are never gathered.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

inline constexpr int64_t kIgnoreIndex = -100;

/// What is summed over valid tokens and divided by `valid_tokens`: those of the whole optimizer step, so that
/// micro-batches add up to the step's mean.
struct LossOptions {
  double valid_tokens;
  double label_smoothing = 0;  // ε: (1 − ε)·−log p[label] + ε/v·Σ −log p, over the whole vocabulary
  double z_loss = 0;           // coefficient of log-sum-exp², which keeps logits from drifting
  LossOptions(double valid)
      : valid_tokens(valid) {}  // NOLINT(google-explicit-constructor): mostly the only one
};

/// Cross-entropy of p = softmax(logits) with `labels`, as `options` say; tokens labeled kIgnoreIndex, and
/// those outside step.valid, have none. Shapes: `logits` [s, b, v/t] S<−1>, `labels` [s, b] int64 whole on
/// every rank → scalar I. Forward: all_reduce(max) of s·b elements, all_reduce(sum) of 2·s·b, 3·s·b under
/// label smoothing. Backward: nothing. Saved: logits and one fp32 per token, with padding the labels too.
/// Errors: c10::ValueError for labels of another shape than the logits' tokens, a label outside the
/// vocabulary, a step that does not fit (check_step), ε outside [0, 1], a negative coefficient. Source:
/// Megatron-LM §3 (embedding), with the log-sum-exp shifted globally; Szegedy et al. 2016 §7 (label
/// smoothing); Chowdhery et al. 2022 §5 (z-loss).
Placed<Invariant> cross_entropy(const Placed<Sharded<kFeature>>& logits, const at::Tensor& labels,
                                const base::Split& vocab, const LossOptions& options, const Step& step);

}  // namespace shardwise::nn
