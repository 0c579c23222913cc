// Rotary positions, fused with the split of a q|k|v product into heads. Which frequencies a model uses is its
// affair.
//
// Hugging Face's convention (rotate_half): element i of a head is paired with element i + d/2.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise::kernels {

/// cos and sin of position · inverse frequency, [positions, d/2] each.
struct RotaryTables {
  at::Tensor cos, sin;
};

/// Angles are computed in fp64; `dtype` is fp32, or fp64 for fp64 models. Errors: c10::ValueError for another
/// dtype.
RotaryTables rotary_tables(const std::vector<double>& inverse_frequencies, int64_t positions,
                           at::ScalarType dtype);

/// Queries, keys and values by head, or their gradients.
struct Qkv {
  at::Tensor q, k, v;
};

/// `qkv` [s, b, (a + 2k)·d] (query heads, then key heads, then value heads) → q [b, a, s, d], k and v [b, k,
/// s, d], each in memory of its own; q and k rotated by position `first_position` + row. Errors:
/// c10::ValueError when the features do not fit the heads or the positions exceed the tables. Source: Su et
/// al. 2021, eq. 34.
Qkv split_rotary(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim,
                 const RotaryTables& tables, int64_t first_position = 0);

/// The gradients of q, k, v (of any strides) → d qkv [s, b, (a + 2k)·d].
at::Tensor split_rotary_backward(const Qkv& grads, const RotaryTables& tables, int64_t first_position = 0);

}  // namespace shardwise::kernels
