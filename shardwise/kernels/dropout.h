// Dropout whose mask on a shard is the slice of the unsharded tensor's mask. Masks are drawn again when
// needed and never stored.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/kernels/random.h"

namespace shardwise::kernels {

/// Returns x · mask / (1 − p), where element i of `x` is element `first_element` + i of the unsharded tensor.
/// Returns x itself for p = 0 and zeros for p = 1. Backward: the same function applied to the gradient.
/// Errors: c10::ValueError if p is not in [0, 1].
at::Tensor dropout(const at::Tensor& x, double p, RandomKey key, int64_t first_element);

}  // namespace shardwise::kernels
