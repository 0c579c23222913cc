// Gradients of a linear layer's weight and bias, added straight into fp32 (fp64) main gradients.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// main_grad += dyᵀ·x, summed in fp32 (fp64).
/// Shapes: `main_grad` [o, i] fp32 (fp64 for fp64), `dy` [n, o], `x` [n, i].
void add_weight_grad_(at::Tensor& main_grad, const at::Tensor& dy, const at::Tensor& x);

/// main_grad += Σ over rows of dy. Shapes: `main_grad` [o] fp32 (fp64), `dy` [n, o].
/// Rows are added in an order that depends on the shape alone.
void add_bias_grad_(at::Tensor& main_grad, const at::Tensor& dy);

}  // namespace shardwise::kernels
