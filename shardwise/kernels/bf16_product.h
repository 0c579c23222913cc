// dyᵀ·x of bf16 matrices with the sum kept in fp32, by the processor's own bf16 products.
//
// torch's matrix products return bf16 for bf16; the block product that its attention is made of does not.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Whether this processor multiplies bf16 (AVX512-BF16); where not, products in fp32 are as fast.
bool has_bf16_products();

/// main_grad += dyᵀ·x. Shapes: `main_grad` [o, i] fp32, `dy` [n, o] and `x` [n, i] bf16, all contiguous.
void add_bf16_product_(const at::Tensor& main_grad, const at::Tensor& dy, const at::Tensor& x);

}  // namespace shardwise::kernels
