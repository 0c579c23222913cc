// Random test tensors, equal on all ranks for equal seeds, and slices of them.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::testing {

/// Returns a standard normal tensor, drawn in fp64.
at::Tensor random_tensor(const std::vector<int64_t>& shape, uint64_t seed,
                         at::ScalarType dtype = at::kDouble);

/// Returns a copy of `rank`'s range of `full` along `dim`.
at::Tensor slice_of(const at::Tensor& full, const base::Split& split, int64_t dim, int rank);

/// Returns a copy of `rank`'s slice of a parameter.
at::Tensor slice_of(const at::Tensor& full, const base::ShardRule& rule, int rank);

/// Returns the sum of the elementwise product in fp64.
double dot(const at::Tensor& a, const at::Tensor& b);

}  // namespace shardwise::testing
