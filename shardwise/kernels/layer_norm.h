// LayerNorm over the last dim, forward and backward, without autograd; nn/ has the autograd node.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Weight and bias [h], or their gradients, fp32 (fp64 for fp64). Only defined gradients are accumulated.
struct Affine {
  at::Tensor weight, bias;
};

/// Mean and reciprocal standard deviation of each row, [...] fp32 (fp64 for fp64).
struct RowMoments {
  at::Tensor mean, rstd;
};

/// Computes y = (x − mean) · rstd · weight + bias, with rstd = 1/sqrt(mean((x − mean)²) + eps) over the last
/// dim. Shapes: `x`, `y` [..., h]. Errors: c10::ValueError if shapes or dtypes do not match, or an output is
/// not contiguous. Source: Ba, Kiros & Hinton 2016, eq. 4.
void layer_norm_out(at::Tensor& y, RowMoments& moments, const at::Tensor& x, const Affine& affine,
                    double eps);

/// Returns only y of layer_norm_out, newly allocated.
at::Tensor layer_norm(const at::Tensor& x, const Affine& affine, double eps);

/// Returns dx and adds the gradients of weight and bias to `gradients_`. The order of the sums depends only
/// on the shape.
at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const RowMoments& moments, const Affine& gradients_);

}  // namespace shardwise::kernels
