// RMSNorm over each query and key head, fused with the split into heads and their rotation.
#pragma once
#include "shardwise/kernels/rotary.h"

namespace shardwise::kernels {

/// The norm's weights [d], one for every query head and one for every key head, or their gradients.
struct QkNormWeights {
  at::Tensor q, k;
};

struct QkNorm {
  QkNormWeights weights;
  double eps;
};

/// As split_rotary, with q and k normalized over their d elements before they are rotated, and rounded once.
/// v is a view of `qkv`, which backward needs whole. Errors: c10::ValueError, as split_rotary's or when a
/// weight does not fit. Source: Dehghani et al. 2023 §2 (q/k norm); Zhang & Sennrich 2019, eq. 4.
Qkv split_norm_rotary(const at::Tensor& qkv, const HeadSplit& split, const QkNorm& norm);

/// The gradients of q, k, v → d qkv. The weights' are added to `weight_grads_`, fp32 (fp64 for fp64), left
/// out where undefined, in an order that depends on the shape alone.
at::Tensor split_norm_rotary_backward(const Qkv& grads, const at::Tensor& qkv, const HeadSplit& split,
                                      const QkNorm& norm, const QkNormWeights& weight_grads_);

}  // namespace shardwise::kernels
