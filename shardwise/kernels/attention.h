// The core of self-attention, softmax(q·kᵀ/√d)·v per head, with grouped KV heads. Scores are never stored.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/kernels/rotary.h"

namespace shardwise::kernels {

struct AttentionResult {
  at::Tensor out;  // [s, b, a·d]
  at::Tensor lse;  // [b, a, s] log-sum-exp of each row's scores, fp32 (fp64 for fp64)
};

/// `q` [b, a, s, d], `k` and `v` [b, k, s, d]; `kv_of_head` names the KV head of each of the a query heads,
/// ascending. Errors: c10::ValueError when shapes, dtypes or kv_of_head do not fit. Source: Dao et al. 2022.
AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::vector<int64_t>& kv_of_head, bool causal);

/// Gradients shaped like q, k and v; those of a KV head are summed over its query heads.
/// `d_out` [s, b, a·d]; `out` and `lse` are the forward's.
Qkv attention_backward(const at::Tensor& d_out, const Qkv& qkv, const at::Tensor& out, const at::Tensor& lse,
                       const std::vector<int64_t>& kv_of_head, bool causal);

}  // namespace shardwise::kernels
