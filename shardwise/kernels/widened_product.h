// Products of bf16 matrices on processors without bf16 instructions (widened_product_isa.h). No operand is
// copied as a whole.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Returns true for y = a·b of bf16 that torch would compute without instructions for them, if rows of `a`,
/// and rows or columns of `b` are contiguous.
bool widens_product(const at::Tensor& a, const at::Tensor& b);

/// Computes y = a·b, summed in fp32. Shapes: `a` [m, k], `b` [k, n], `y` [m, n], bf16; as widens_product
/// says.
void widened_product_out(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b);

/// Computes main_grad += dyᵀ·x. Shapes: `main_grad` [o, i] fp32, `dy` [n, o], `x` [n, i] bf16, contiguous.
void add_widened_product_(const at::Tensor& main_grad, const at::Tensor& dy, const at::Tensor& x);

}  // namespace shardwise::kernels
