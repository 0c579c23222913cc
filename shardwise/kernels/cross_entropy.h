// The parts of cross-entropy that one shard of the vocabulary can compute; the sums over shards are nn's.
//
// The logits are read in their own dtype and never copied to fp32. Between the parts, max and sums are fp32
// (fp64).
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// `logits` [n, v_local] → [n] fp32 (fp64 for fp64), −inf where v_local is 0.
at::Tensor row_max(const at::Tensor& logits);

/// A token's loss: (1 − smoothing)·−log p[label] + smoothing/vocab·Σ −log p + z_loss·lse², p =
/// softmax(logits).
struct TokenLoss {
  double label_smoothing = 0;  // in [0, 1]
  double z_loss = 0;
  int64_t vocab = 0;  // classes of all shards together; read under label smoothing alone

  double label_weight() const { return 1 - label_smoothing; }
  double class_weight() const {
    return label_smoothing > 0 ? label_smoothing / static_cast<double>(vocab) : 0;
  }
};

/// → [2, n]: Σ exp(logit − max) over this shard; the target's logit − max where the label lies in
/// [begin, begin + v_local), else 0 (so for ignored labels, which lie in no shard). Under label smoothing
/// [3, n], with Σ (logit − max) over this shard.
/// Shapes: `logits` [n, v_local], `labels` [n] int64, `max` [n] fp32 (fp64), of the whole vocabulary.
at::Tensor loss_sums(const at::Tensor& logits, const at::Tensor& labels, int64_t begin, const at::Tensor& max,
                     const TokenLoss& loss = {});

/// What all tokens of one backward share.
struct LossGradient {
  double scale;
  int64_t ignore_index;
  TokenLoss loss = {};
};

/// d logits = (softmax · (1 + 2·z_loss·lse) − [label]·(1 − smoothing) − smoothing/vocab) · scale, zero in
/// rows whose label is `ignore_index`; logits' dtype. Shapes: `lse` [n] = max + log Σ exp(logit − max), of
/// the whole vocabulary.
at::Tensor cross_entropy_backward(const at::Tensor& logits, const at::Tensor& labels, int64_t begin,
                                  const at::Tensor& lse, const LossGradient& gradient);

}  // namespace shardwise::kernels
