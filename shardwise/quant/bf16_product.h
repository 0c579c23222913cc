// Products of bf16 rows with a packed weight by the processor's bf16 dot products: AMX's tiles, or
// AVX512-BF16. Both sum in an order that depends on the weight alone.
#pragma once
#include "shardwise/quant/panels.h"

namespace shardwise::quant {

/// Computes y = x Wᵀ in bf16, accumulated in fp32; quantized values are rounded to bf16. Shapes: `x` [m,
/// width], `y` [m, rows] bf16, contiguous. Needs
/// kernels::has_bf16_products().
void bf16_product_out(const at::Tensor& y, const at::Tensor& x, const Panels& w);

}  // namespace shardwise::quant
