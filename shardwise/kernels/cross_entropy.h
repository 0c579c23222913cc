// The local parts of vocab-parallel cross-entropy, for one vocabulary shard; nn/ reduces over the shards.
//
// Reads the logits in their dtype, without an fp32 copy. The maxima and sums are fp32 (fp64 for fp64).
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// The loss of a token: (1 − smoothing)·−log p[label] + smoothing/vocab·Σ −log p + z_loss·lse², with
/// p = softmax(logits).
struct TokenLoss {
  double label_smoothing = 0;  // in [0, 1]
  double z_loss = 0;
  int64_t vocab = 0;  // the unsharded vocabulary's size; only read with label smoothing

  bool is_smoothed() const { return label_smoothing > 0; }
  /// The number of values of loss_terms for each token.
  int64_t terms() const { return is_smoothed() ? 4 : 3; }
  double label_weight() const { return 1 - label_smoothing; }
  double class_weight() const { return is_smoothed() ? label_smoothing / static_cast<double>(vocab) : 0; }
};

/// Returns what the loss needs from this shard, one row each: the largest logit, −inf if v_local is 0;
/// Σ exp(logit − origin), where the origin is the largest logit, or 0 if that is infinite; the target's logit
/// if the label is in [begin, begin + v_local), otherwise 0; with label smoothing, Σ (logit − origin).
/// Shapes: `logits` [n, v_local], `labels` [n] int64 → [loss.terms(), n] fp32 (fp64).
at::Tensor loss_terms(const at::Tensor& logits, const at::Tensor& labels, int64_t begin,
                      const TokenLoss& loss = {});

/// Returns log Σ exp(logit − max) over the vocabulary, where max is a token's largest logit of all shards,
/// from `terms` [shards, loss.terms(), n], the loss_terms of each shard → [n]. A shard whose largest logit is
/// −inf adds nothing.
at::Tensor log_sums(const at::Tensor& terms);

/// The parameters of a backward pass that all tokens share.
struct LossGradient {
  double scale;
  int64_t ignore_index;
  TokenLoss loss = {};
};

/// Replaces `logits` by their gradient (softmax · (1 + 2·z_loss·lse) − [label]·(1 − smoothing) −
/// smoothing/vocab) · scale; by zero in rows whose label is `ignore_index`.
/// Shapes: `logits` [n, v_local] contiguous; `lse` [n] = log Σ exp(logit) over the full vocabulary.
void cross_entropy_backward_(at::Tensor& logits, const at::Tensor& labels, int64_t begin,
                             const at::Tensor& lse, const LossGradient& gradient);

}  // namespace shardwise::kernels
