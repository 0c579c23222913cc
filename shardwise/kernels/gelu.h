// GeLU fused with the bias addition of the preceding product. Source: Hendrycks & Gimpel 2016.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// The form of Φ in x · Φ(x): `erf`, the normal distribution's (Hugging Face: gelu), or `tanh`, the
/// approximation (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2 (gelu_new, gelu_pytorch_tanh).
enum class Gelu { erf, tanh };

/// Returns gelu(x + bias), without rounding the sum. Shapes: `x` [..., f] → [..., f]; `bias` [f], or
/// undefined. Errors: c10::ValueError if shapes or dtypes do not match.
at::Tensor gelu(const at::Tensor& x, const at::Tensor& bias, Gelu form);

/// Returns dx [..., f] and adds its sum over the rows to `bias_grad_` [f] fp32 (fp64 for fp64), if that is
/// defined. The order of the sum depends only on the shape.
at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Gelu form,
                         at::Tensor bias_grad_);

}  // namespace shardwise::kernels
