// Self-attention, softmax(q·kᵀ/√d)·v per head, with grouped KV heads, masks and dropout. The score matrix is
// never materialized.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "shardwise/kernels/random.h"
#include "shardwise/kernels/rotary.h"

namespace shardwise::kernels {

/// Dropout of probabilities after the softmax. The mask of a probability depends only on the key and on its
/// index in the unsharded model's [b, heads, s, ⌈s⌉₃₂] (rows of keys are padded to a multiple of 32), so it
/// does not depend on how heads are sharded. Queries and keys are counted from their sequence's first token,
/// so left padding does not shift the mask; s, padding included, determines where the next row begins.
struct AttentionDropout {
  double p = 0;  // in [0, 1)
  RandomKey key = {};
  int64_t first_head = 0;  // index of the first local head in the unsharded model
  int64_t all_heads = 0;   // number of heads in the unsharded model
};

/// Which keys each query attends to.
struct AttentionOptions {
  std::vector<int64_t> kv_of_head = {};  // the KV head of each query head, ascending
  bool causal = true;                    // query i attends to keys up to i
  /// Sliding window, requires `causal`: query i attends to the keys (i − window, i], as in transformers.
  std::optional<int64_t> window = {};
  /// Per sequence, the positions that are not padding. Padding is never attended to; its outputs and
  /// gradients are zero. Empty: no padding.
  std::vector<base::Range> valid = {};
  AttentionDropout dropout = {};
};

struct AttentionResult {
  at::Tensor out;  // [s, b, a·d]
  at::Tensor lse;  // [b, a, s] log-sum-exp of each row's scores, fp32 (fp64 for fp64); 0 for padding
};

/// Computes attention. The queries are the last s of m positions (m = s in training).
/// Shapes: `q` [b, a, s, d], `k` and `v` [b, k, m, d], of any strides.
/// Cost: s·m scores per head, s·window with a window; parallel over the b·a heads.
/// Errors: c10::ValueError if shapes, dtypes or options do not match, or if m > s with padding or dropout.
/// Source: Dao et al. 2022.
AttentionResult attention(const Qkv& qkv, const AttentionOptions& options);

/// Returns the gradients of q, k and v. A KV head's gradient is the sum over its query heads. Requires as
/// many queries as keys. `forward` and `options` are those of the forward pass. The dropout mask is drawn
/// again. Shapes: `d_out` [s, b, a·d] → gradients with the shapes of q, k and v. Cost: parallel over b·k
/// tasks, one per KV head in use and sequence; with fewer tasks than cores, cores idle. Errors:
/// c10::ValueError if shapes, dtypes or options do not match.
Qkv attention_backward(const at::Tensor& d_out, const Qkv& qkv, const AttentionResult& forward,
                       const AttentionOptions& options);

}  // namespace shardwise::kernels
