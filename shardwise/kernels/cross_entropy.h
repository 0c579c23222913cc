// The local parts of vocab-parallel cross-entropy, for one vocabulary shard; nn/ reduces over the shards.
//
// Reads the logits in their dtype, without an fp32 copy. The maxima and sums are fp32 (fp64 for fp64).
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Returns the maximum of each row, −inf if v_local is 0. Shapes: `logits` [n, v_local] → [n] fp32 (fp64).
at::Tensor row_max(const at::Tensor& logits);

/// The loss of a token: (1 − smoothing)·−log p[label] + smoothing/vocab·Σ −log p + z_loss·lse², with
/// p = softmax(logits).
struct TokenLoss {
  double label_smoothing = 0;  // in [0, 1]
  double z_loss = 0;
  int64_t vocab = 0;  // the unsharded vocabulary's size; only read with label smoothing

  double label_weight() const { return 1 - label_smoothing; }
  double class_weight() const {
    return label_smoothing > 0 ? label_smoothing / static_cast<double>(vocab) : 0;
  }
};

/// Returns this shard's sums, one row each: Σ exp(logit − max); the target's logit − max if the label is in
/// [begin, begin + v_local), otherwise 0 (also for ignored labels); with label smoothing, Σ (logit − max).
/// Shapes: `logits` [n, v_local], `labels` [n] int64, `max` [n] fp32 (fp64) over the full vocabulary → [2,
/// n], or [3, n] with label smoothing.
at::Tensor loss_sums(const at::Tensor& logits, const at::Tensor& labels, int64_t begin, const at::Tensor& max,
                     const TokenLoss& loss = {});

/// The parameters of a backward pass that all tokens share.
struct LossGradient {
  double scale;
  int64_t ignore_index;
  TokenLoss loss = {};
};

/// Returns d logits = (softmax · (1 + 2·z_loss·lse) − [label]·(1 − smoothing) − smoothing/vocab) · scale in
/// the dtype of `logits`; zero in rows whose label is `ignore_index`. Shapes: `lse` [n] = max + log Σ
/// exp(logit − max), over the full vocabulary.
at::Tensor cross_entropy_backward(const at::Tensor& logits, const at::Tensor& labels, int64_t begin,
                                  const at::Tensor& lse, const LossGradient& gradient);

}  // namespace shardwise::kernels
