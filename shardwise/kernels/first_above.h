// A search in a row of logits, which skips quickly what cannot be among the best.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Returns the index of the first value of `row` [v] (contiguous), from `begin` on, that is NaN or above
/// `bound`; v if there is none. A bound that the row's dtype cannot represent is rounded down. Errors:
/// c10::ValueError if `row` is not a contiguous vector of a supported dtype on the CPU.
int64_t first_above(const at::Tensor& row, int64_t begin, double bound);

}  // namespace shardwise::kernels
