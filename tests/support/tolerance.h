// How far two tensors are apart, as the tests state it.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::testing {

/// ‖a−b‖ / ‖b‖ in fp64; ‖a‖ when b is zero; infinity when shapes differ or a value is not finite.
double relative_error(const at::Tensor& a, const at::Tensor& b);

/// Same shape, dtype and bits (NaN equals itself).
bool same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace shardwise::testing
