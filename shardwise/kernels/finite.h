// Numbers that are none, or infinite.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace shardwise::kernels {

/// The first number of `x`, by rows, that is NaN or infinite; integers hold none. `x` has at most two dims,
/// one of which lies in one piece: where it is the first, columns take the rows' place. Cost: one pass by all
/// threads; no memory.
std::optional<double> first_not_finite(const at::Tensor& x);

}  // namespace shardwise::kernels
