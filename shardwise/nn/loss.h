// Cross-entropy over vocabulary-sharded logits, without gathering them. linear_cross_entropy.h computes the
// logits too, a chunk at a time.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

/// The label of a token without loss, that of torch.nn.CrossEntropyLoss.
inline constexpr int64_t kIgnoreIndex = -100;

/// How token losses are computed and averaged.
struct LossOptions {
  double valid_tokens;  // divisor: of the full optimizer step, so that micro-batches add up to its mean
  double label_smoothing = 0;  // ε: (1 − ε)·−log p[label] + ε/v·Σ −log p, over the full vocabulary
  double z_loss = 0;           // coefficient of log-sum-exp²; keeps logits from drifting
  LossOptions(double valid)
      : valid_tokens(valid) {}  // NOLINT(google-explicit-constructor): usually the only option set
};

/// Returns the cross-entropy of p = softmax(logits) with `labels`, summed over the tokens and divided by
/// options.valid_tokens. Tokens labeled kIgnoreIndex or outside step.valid have no loss.
/// Shapes: `logits` [s, b, v/t] S<−1>, `labels` [s, b] int64, all of them on every rank → scalar I.
/// Forward: all_gather of three values for each token, four with label smoothing. Backward: nothing.
/// Saved: logits and one fp32 per token; with padding, the labels too.
/// Errors: c10::ValueError if labels and logits differ in shape, a label is outside the vocabulary, the step
/// does not fit (check_step), label_smoothing is outside [0, 1] or z_loss is negative.
/// Source: Megatron-LM §3 (embedding), with the shards' log-sum-exps combined; Szegedy et al. 2016 §7
/// (label smoothing); Chowdhery et al. 2022 §5 (z-loss).
Placed<Invariant> cross_entropy(const Placed<Sharded<kFeature>>& logits, const at::Tensor& labels,
                                const base::Split& vocab, const LossOptions& options, const Step& step);

}  // namespace shardwise::nn
