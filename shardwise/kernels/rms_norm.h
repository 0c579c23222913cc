// RMSNorm over the last dim, forward and backward, without autograd; nn/ has the autograd node.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Computes y = x · rstd · weight, with rstd = 1/sqrt(mean(x²) + eps) over the last dim.
/// Shapes: `x`, `y` [..., h], `weight` [h], `rstd` [...] fp32 (fp64 for fp64).
/// Errors: c10::ValueError if shapes or dtypes do not match, or an output is not contiguous.
/// Source: Zhang & Sennrich 2019, eq. 4.
void rms_norm_out(at::Tensor& y, at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight, double eps);

/// Returns only y of rms_norm_out, newly allocated.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// Returns dx and adds the weight's gradient to `weight_grad_` [h] fp32 (fp64 for fp64), if that is defined.
/// The order of the sum depends only on the shape.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& weight_grad_);

}  // namespace shardwise::kernels
