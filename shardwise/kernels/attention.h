// The core of self-attention, softmax(q·kᵀ/√d)·v per head, with grouped KV heads and masks. Scores are never
// stored.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "shardwise/kernels/random.h"
#include "shardwise/kernels/rotary.h"

namespace shardwise::kernels {

/// Drops probabilities after the softmax. What is drawn for a probability depends on the key and its place in
/// the whole model's [b, heads, s, ⌈s⌉₃₂] alone, rows of keys being rounded up to 32, so that a mask is the
/// same however the heads are dealt. Queries and keys are counted from their sequence's first token: padding
/// before it moves no mask, but s, padding included, sets where the next row begins.
struct AttentionDropout {
  double p = 0;  // in [0, 1)
  RandomKey key = {};
  int64_t first_head = 0;  // of these in the whole model,
  int64_t all_heads = 0;   // which has so many
};

/// Who attends to what.
struct AttentionOptions {
  std::vector<int64_t> kv_of_head = {};  // the KV head of each query head, ascending
  bool causal = true;                    // query i sees no key beyond i
  /// With causal: query i sees the keys (i − window, i], its own included, as transformers counts.
  std::optional<int64_t> window = {};
  /// Per sequence, the positions that hold tokens. Others are not seen; as queries they give zeros, and
  /// no gradient. Empty: all positions of all sequences.
  std::vector<base::Range> valid = {};
  AttentionDropout dropout = {};
};

struct AttentionResult {
  at::Tensor out;  // [s, b, a·d]
  at::Tensor lse;  // [b, a, s] log-sum-exp of each row's scores, fp32 (fp64 for fp64); 0 without a token
};

/// `q` [b, a, s, d], `k` and `v` [b, k, m, d], of any strides: the queries are the last s of m positions, all
/// of them in training. Cost: s·m scores per head, with a window s·window; threads share the b·a heads.
/// Errors: c10::ValueError when shapes, dtypes or options do not fit, or m > s meets padding or dropout.
/// Source: Dao et al. 2022.
AttentionResult attention(const Qkv& qkv, const AttentionOptions& options);

/// Gradients shaped like q, k and v, of as many queries as keys; those of a KV head are summed over its query
/// heads. `d_out` [s, b, a·d]; `forward` and the options are the forward's. Dropout's mask is drawn again.
/// Cost: threads share b·k pieces, one per KV head in use and sequence, so that with few of them cores are
/// idle. Errors: as the forward's.
Qkv attention_backward(const at::Tensor& d_out, const Qkv& qkv, const AttentionResult& forward,
                       const AttentionOptions& options);

}  // namespace shardwise::kernels
