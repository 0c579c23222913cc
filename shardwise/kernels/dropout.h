// Dropout whose mask is that of the whole tensor, sliced; it is drawn again wherever it is needed, never
// stored.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/kernels/random.h"

namespace shardwise::kernels {

/// y = x · mask / (1 − p); element i of `x` is element `first_element` + i of the whole tensor. Applied to
/// the gradient it is the backward. p = 0 returns x itself, p = 1 zeros. Errors: c10::ValueError for p
/// outside [0, 1].
at::Tensor dropout(const at::Tensor& x, double p, RandomKey key, int64_t first_element);

}  // namespace shardwise::kernels
