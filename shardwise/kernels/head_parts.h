// Shared by rotary, qk_norm and attention: heads as tensors, offsets and strides of q, k and v in fused
// features, and shape checks. Internal to kernels/.
#pragma once
#include <vector>

#include "shardwise/kernels/rotary.h"
#include "shardwise/kernels/rotary_isa.h"
#include "shardwise/kernels/tensors.h"

namespace shardwise::kernels {

/// q, k or v, with its offset in a token's fused q|k|v features.
struct HeadPart {
  at::Tensor heads;  // [b, heads, s, d]; the elements of a head are contiguous
  int64_t first_feature;
  bool is_rotated;
};

inline std::vector<HeadPart> parts_of(const Qkv& qkv) {
  const int64_t d = qkv.q.size(3);
  const int64_t k_begin = qkv.q.size(1) * d, v_begin = k_begin + qkv.k.size(1) * d;
  return {{qkv.q, 0, true}, {qkv.k, k_begin, true}, {qkv.v, v_begin, false}};
}

inline HeadStrides strides_of(const at::Tensor& heads) {
  return {heads.stride(2), heads.stride(0), heads.stride(1)};
}

/// Returns the strides of heads in `qkv` [s, b, features].
inline HeadStrides token_strides(const at::Tensor& qkv, int64_t head_dim) {
  return {qkv.size(1) * qkv.size(2), qkv.size(2), head_dim};
}

/// Returns the extent of `rows` rows of `heads` [b, heads, s, d].
inline HeadExtent extent_of(const at::Tensor& heads, int64_t rows) {
  return {rows, heads.size(0), heads.size(1), heads.size(3)};
}

inline at::Tensor with_contiguous_heads(const at::Tensor& heads) {
  return heads.stride(3) == 1 ? heads : heads.contiguous();
}

inline Qkv with_contiguous_heads(const Qkv& qkv) {
  return {with_contiguous_heads(qkv.q), with_contiguous_heads(qkv.k), with_contiguous_heads(qkv.v)};
}

/// Returns [s, b, heads·d] as a view [b, heads, s, d].
inline at::Tensor by_head(const at::Tensor& x, int64_t heads, int64_t head_dim) {
  return x.view({x.size(0), x.size(1), heads, head_dim}).permute({1, 2, 0, 3});
}

/// Returns an uninitialized [b, heads, s, d] for the features `qkv` [s, b, features].
at::Tensor empty_heads(const at::Tensor& qkv, int64_t heads, int64_t head_dim);

/// Returns the number of elements in one row of q, k and v.
inline int64_t work_per_row(const Qkv& qkv) {
  return qkv.q.size(0) * qkv.q.size(3) * (qkv.q.size(1) + 2 * qkv.k.size(1));
}

/// The rotary angles of the rows of a HeadSplit.
class PositionAngles {
 public:
  explicit PositionAngles(const HeadSplit& split);
  template <class A>
  RotaryAngles<A> from(int64_t row) const {
    return {elements<A>(split_.tables.cos), elements<A>(split_.tables.sin), split_.tables.cos.size(1),
            split_.first_position + row, begins_.empty() ? nullptr : begins_.data()};
  }

 private:
  const HeadSplit& split_;
  std::vector<int64_t> begins_;
};

/// Check shapes, positions and valid rows of a forward's and a backward's inputs. Errors: c10::ValueError.
void check_qkv(const char* op, const at::Tensor& qkv, const HeadSplit& split);
void check_grads(const char* op, const Qkv& grads, const HeadSplit& split);

}  // namespace shardwise::kernels
