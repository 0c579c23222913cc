// LayerNorm over the last dim, forward and backward. The autograd node around it is nn's.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// [h] each. As gradients: fp32 (fp64 for fp64), each added to, or left out when undefined.
struct Affine {
  at::Tensor weight, bias;
};

/// Of each row: [...] fp32 (fp64 for fp64) each.
struct RowMoments {
  at::Tensor mean, rstd;
};

/// y = (x − mean) · rstd · weight + bias, rstd = 1/sqrt(mean((x − mean)²) + eps) over the last dim.
/// Shapes: `x`, `y` [..., h]. Errors: c10::ValueError when the shapes or dtypes do not fit, or an output is
/// not contiguous. Source: Ba, Kiros & Hinton 2016, eq. 4.
void layer_norm_out(at::Tensor& y, RowMoments& moments, const at::Tensor& x, const Affine& affine,
                    double eps);

/// y alone, newly allocated.
at::Tensor layer_norm(const at::Tensor& x, const Affine& affine, double eps);

/// dx; the gradients of weight and bias are added to `gradients_`. Rows are added in an order that depends on
/// the shape alone.
at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const RowMoments& moments, const Affine& gradients_);

}  // namespace shardwise::kernels
