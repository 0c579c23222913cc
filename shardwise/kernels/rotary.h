// Rotary position embedding (RoPE), fused with the split of a q|k|v product into heads. The model chooses the
// frequencies; qk_norm.h is for models that normalize heads before the rotation.
//
// Uses Hugging Face's convention (rotate_half): element i of a head is paired with element i + r/2, where r,
// the number of rotated elements, may be smaller than the head's d.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::kernels {

/// Tables of the cos and sin of position · inverse frequency, [positions, r/2] each.
struct RotaryTables {
  at::Tensor cos;  // fp32, or fp64 for fp64 models
  at::Tensor sin;  // of the same dtype
};

/// Returns the tables for `positions` positions. Computes angles in fp64; `dtype` is fp32, or fp64 for fp64
/// models. Errors: c10::ValueError for another dtype.
RotaryTables rotary_tables(const std::vector<double>& inverse_frequencies, int64_t positions,
                           at::ScalarType dtype);

/// Queries, keys and values, [b, heads, s, d], or their gradients.
struct Qkv {
  at::Tensor q;  // rotated
  at::Tensor k;  // rotated
  at::Tensor v;  // unchanged
};

/// The layout and rotation of a token's features q|k|v: query heads, then key heads, then value heads.
struct HeadSplit {
  int64_t heads;               // local query heads
  int64_t kv_heads;            // local KV heads
  int64_t head_dim;            // features of a head
  RotaryTables tables;         // of as many positions as the last row needs
  int64_t first_position = 0;  // position of row 0
  /// Per sequence, the rows that are not padding; positions count from the first of them. Empty: no padding.
  std::vector<base::Range> valid = {};
  /// Per sequence, the position of row 0, in place of first_position. Empty: first_position is that of all.
  std::vector<int64_t> first_positions = {};
  /// The same, [b] int64, where the heads are if that is not the CPU. Undefined: they are copied there.
  at::Tensor first_positions_on_device = {};
};

/// Checks that `valid` is empty or has a range in [0, s) for each of b sequences. Errors: c10::ValueError.
void check_valid_rows(const char* op, const std::vector<base::Range>& valid, int64_t s, int64_t b);

/// Splits `qkv` into newly allocated q, k and v and rotates q and k by their positions.
/// Shapes: `qkv` [s, b, (a + 2k)·d] → q [b, a, s, d], k and v [b, k, s, d].
/// Errors: c10::ValueError if the features do not match the heads, the positions exceed the tables, or
/// `valid` does not match. Source: Su et al. 2021, eq. 34.
Qkv split_rotary(const at::Tensor& qkv, const HeadSplit& split);

/// Returns d qkv [s, b, (a + 2k)·d] from the gradients of q, k and v, of any strides.
at::Tensor split_rotary_backward(const Qkv& grads, const HeadSplit& split);

}  // namespace shardwise::kernels
