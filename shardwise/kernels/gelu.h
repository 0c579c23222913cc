// GeLU of a product and the bias that the product left out. Source: Hendrycks & Gimpel 2016.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// x · Φ(x) with the normal distribution's Φ (Hugging Face: gelu), or with Φ taken as
/// (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2 (gelu_new, gelu_pytorch_tanh).
enum class Gelu { erf, tanh };

/// gelu(x + bias), the sum not rounded in between. Shapes: `x` [..., f] → [..., f]; `bias` [f], or undefined
/// for none. Errors: c10::ValueError when the shapes or dtypes do not fit.
at::Tensor gelu(const at::Tensor& x, const at::Tensor& bias, Gelu form);

/// dx [..., f]; its sum over rows is added to `bias_grad_` [f] fp32 (fp64 for fp64), or left out when that is
/// undefined. Rows are added in an order that depends on the shape alone.
at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Gelu form,
                         at::Tensor bias_grad_);

}  // namespace shardwise::kernels
