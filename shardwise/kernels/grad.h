// Gradients of a linear layer's weight and bias, accumulated directly into fp32 (fp64) main gradients.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Computes main_grad += dyᵀ·x, accumulated in fp32 (fp64).
/// Shapes: `main_grad` [o, i] fp32 (fp64 for fp64), `dy` [n, o], `x` [n, i].
void add_weight_grad_(at::Tensor& main_grad, const at::Tensor& dy, const at::Tensor& x);

/// Computes main_grad += Σ over rows of dy. The order of the sum depends only on the shape.
/// Shapes: `main_grad` [o] fp32 (fp64), `dy` [n, o].
void add_bias_grad_(at::Tensor& main_grad, const at::Tensor& dy);

}  // namespace shardwise::kernels
