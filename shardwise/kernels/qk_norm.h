// RMSNorm over each query and key head (QK norm), fused with the split into heads and the rotary embedding.
#pragma once
#include "shardwise/kernels/rotary.h"

namespace shardwise::kernels {

/// The norm's weights [d], one shared by all query heads and one shared by all key heads, or their gradients.
struct QkNormWeights {
  at::Tensor q, k;
};

struct QkNormParams {
  QkNormWeights weights;
  double eps;
};

/// Splits `qkv` like split_rotary, and normalizes q and k over their d elements before the rotation; rounds
/// once. v is a view of `qkv`, because backward needs `qkv` anyway. Errors: c10::ValueError as for
/// split_rotary, or if a weight does not match. Source: Dehghani et al. 2023 §2 (q/k norm); Zhang & Sennrich
/// 2019, eq. 4.
Qkv split_norm_rotary(const at::Tensor& qkv, const HeadSplit& split, const QkNormParams& norm);

/// Returns d qkv from the gradients of q, k and v. Adds the weights' gradients to `weight_grads_` (fp32, fp64
/// for fp64), if they are defined, in an order that depends only on the shape.
at::Tensor split_norm_rotary_backward(const Qkv& grads, const at::Tensor& qkv, const HeadSplit& split,
                                      const QkNormParams& norm, const QkNormWeights& weight_grads_);

}  // namespace shardwise::kernels
