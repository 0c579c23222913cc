// Distances of tensors.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::testing {

/// Returns ‖a−b‖ / ‖b‖ in fp64; ‖a‖ if b is zero; infinity if shapes differ or a value is NaN or Inf.
double relative_error(const at::Tensor& a, const at::Tensor& b);

/// Returns true if shape, dtype and bits are equal (NaN equals itself).
bool same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace shardwise::testing
