// dyᵀ·x of bf16 matrices accumulated in fp32, with the processor's bf16 dot product instructions.
//
// torch's matrix products return bf16 for bf16 inputs. The brgemm kernel of its CPU attention returns fp32.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Returns true if this processor has bf16 dot products (AVX512-BF16). Otherwise widened_product.h
/// multiplies.
bool has_bf16_products();
/// Returns the bytes per element of the copies of a weight gradient's bf16 operands: 2 if they are packed
/// here.
int64_t weight_gradient_operand_bytes();

/// Computes main_grad += dyᵀ·x. Shapes: `main_grad` [o, i] fp32, `dy` [n, o], `x` [n, i] bf16, contiguous.
void add_bf16_product_(const at::Tensor& main_grad, const at::Tensor& dy, const at::Tensor& x);

}  // namespace shardwise::kernels
