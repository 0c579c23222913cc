// Rotary positions, fused with the split of a q|k|v product into heads. Which frequencies a model uses is its
// affair; models that normalize heads before they rotate them have qk_norm.h.
//
// Hugging Face's convention (rotate_half): element i of a head is paired with element i + r/2, where r, the
// elements that are rotated, may be fewer than the head's d.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::kernels {

/// cos and sin of position · inverse frequency, [positions, r/2] each.
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

/// How a token's features q|k|v (query heads, then key heads, then value heads) are laid out and rotated.
struct HeadSplit {
  int64_t heads, kv_heads, head_dim;
  RotaryTables tables;
  int64_t first_position = 0;  // of row 0
  /// Per sequence, the rows that hold tokens: positions are counted from the first of them. Empty: every row.
  std::vector<base::Range> valid = {};
};

/// Errors: c10::ValueError unless `valid` is empty or names a part of [0, s) for each of b sequences.
void check_valid(const char* op, const std::vector<base::Range>& valid, int64_t s, int64_t b);

/// `qkv` [s, b, (a + 2k)·d] → q [b, a, s, d], k and v [b, k, s, d], each in memory of its own; q and k
/// rotated by their position. Errors: c10::ValueError when the features do not fit the heads, the positions
/// exceed the tables, or `valid` does not fit. Source: Su et al. 2021, eq. 34.
Qkv split_rotary(const at::Tensor& qkv, const HeadSplit& split);

/// The gradients of q, k, v (of any strides) → d qkv [s, b, (a + 2k)·d].
at::Tensor split_rotary_backward(const Qkv& grads, const HeadSplit& split);

}  // namespace shardwise::kernels
