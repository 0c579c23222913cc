// A product with a weight in a tensor or packed in panels.
#pragma once
#include "shardwise/parallel/parameter.h"

namespace shardwise::parallel {

/// Computes y = x Wᵀ with the local shard W [out, in]. Shapes: `x` [m, in], `y` [m, out] contiguous.
void weight_product_out(at::Tensor& y, const at::Tensor& x, const Parameter& weight);

/// Returns what weight_product_out uses for these operands, for output.
std::string product_name(const at::Tensor& x, const Parameter& weight);

/// Returns up to how many rows of x in `dtype` have the bits that each row has alone.
int64_t rows_with_equal_bits(at::ScalarType dtype, const Parameter& weight);

/// Checks that gradients can flow through a product with `weight`.
/// Errors: c10::ValueError if `weight` is packed.
void check_trainable(const Parameter& weight);

}  // namespace shardwise::parallel
