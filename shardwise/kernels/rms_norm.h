// RMSNorm over the last dim, forward and backward. The autograd node around it is nn's.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// y = x · rstd · weight, rstd = 1/sqrt(mean(x²) + eps) over the last dim.
/// Shapes: `x`, `y` [..., h], `weight` [h], `rstd` [...] fp32 (fp64 for fp64).
/// Errors: c10::ValueError when the shapes or dtypes do not fit, or an output is not contiguous.
/// Source: Zhang & Sennrich 2019, eq. 4.
void rms_norm_out(at::Tensor& y, at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight, double eps);

/// y alone, newly allocated.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// dx; the weight's gradient is added to `weight_grad_` [h] fp32 (fp64 for fp64), or left out when that is
/// undefined. Rows are added in an order that depends on the shape alone.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& weight_grad_);

}  // namespace shardwise::kernels
