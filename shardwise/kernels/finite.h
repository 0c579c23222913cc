// NaN and Inf checks.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace shardwise::kernels {

/// Returns the first NaN or Inf of `x` in row order (column order if only the first dim is contiguous), or
/// nullopt. Always nullopt for integers. `x` has at most two dims, of which one is contiguous. Cost: one
/// multithreaded pass over `x`, no memory.
std::optional<double> first_nan_or_inf(const at::Tensor& x);

}  // namespace shardwise::kernels
