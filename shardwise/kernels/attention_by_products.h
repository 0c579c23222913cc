// Attention of a training step by batched products of whole score matrices: plain ATen operations, for
// devices without a fused kernel. Internal to kernels/: attention.h checks the arguments.
#pragma once
#include "shardwise/kernels/attention.h"

namespace shardwise::kernels {

/// Computes `attention` (attention.h) on the device of `qkv`; scores in fp32 (fp64 for fp64).
/// Shapes: `q` [b, a, s, d], `k` and `v` [b, k, m, d] → out [s, b, a·d], lse [b, a, s].
/// Cost: s·m scores per head, masked ones too; a matrix [b, a, s, m] of 4 bytes per score (8 for fp64), two
/// at a time with dropout. One batch of products; one per sequence with padding, or with dropout of a shard
/// of the heads. A NaN of `v` reaches all queries of its head, also those to which its key is masked.
AttentionResult attention_by_products(const Qkv& qkv, const AttentionOptions& options);

/// Computes `attention_backward` (attention.h) in the same way. Recomputes probabilities from the lse.
/// Shapes: `d_out` [s, b, a·d] → gradients with the shapes of q, k and v.
/// Cost: as forward, but two matrices at a time, three with dropout. Source: Dao et al. 2022, appendix B.
Qkv attention_backward_by_products(const at::Tensor& d_out, const Qkv& qkv, const AttentionResult& forward,
                                   const AttentionOptions& options);

}  // namespace shardwise::kernels
