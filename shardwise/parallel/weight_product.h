// A product with a parameter's weight, whichever way it is held: numbers, or codes.
#pragma once
#include "shardwise/parallel/parameter.h"

namespace shardwise::parallel {

/// y = x Wᵀ of the local slice W [out, in]. Shapes: `x` [m, in], `y` [m, out] contiguous.
void weight_product_out(at::Tensor& y, const at::Tensor& x, const Parameter& weight);

/// Errors: c10::ValueError for a quantized weight, which has no gradient and passes none on.
void check_trainable(const Parameter& weight);

}  // namespace shardwise::parallel
