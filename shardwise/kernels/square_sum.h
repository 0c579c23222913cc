// The sum of squares of a tensor, in fp64.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Returns Σ x². The order of the sum depends only on the number of elements. Shapes: `x` of any, contiguous.
double square_sum(const at::Tensor& x);

}  // namespace shardwise::kernels
