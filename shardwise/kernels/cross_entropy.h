// The parts of cross-entropy that one shard of the vocabulary can compute; the sums over shards are nn's.
//
// The logits are read in their own dtype and never copied to fp32. Between the parts, max and sums are fp32
// (fp64).
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// `logits` [n, v_local] → [n] fp32 (fp64 for fp64), −inf where v_local is 0.
at::Tensor row_max(const at::Tensor& logits);

/// → [2, n]: Σ exp(logit − max) over this shard; the target's logit − max where the label lies in
/// [begin, begin + v_local), else 0 (so for ignored labels, which lie in no shard).
/// Shapes: `logits` [n, v_local], `labels` [n] int64, `max` [n] fp32 (fp64), of the whole vocabulary.
at::Tensor sum_exp_and_target(const at::Tensor& logits, const at::Tensor& labels, int64_t begin,
                              const at::Tensor& max);

/// d logits = (exp(logit − lse) − [label]) · scale, zero in rows whose label is `ignore_index`; logits'
/// dtype. Shapes: `lse` [n] = max + log Σ exp(logit − max), of the whole vocabulary.
at::Tensor cross_entropy_backward(const at::Tensor& logits, const at::Tensor& labels, int64_t begin,
                                  const at::Tensor& lse, double scale, int64_t ignore_index);

}  // namespace shardwise::kernels
