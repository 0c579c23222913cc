// Tensors for tests: the same numbers on every rank that asks with the same seed, and slices of them.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::testing {

/// Standard normal, drawn in fp64.
at::Tensor random_tensor(const std::vector<int64_t>& shape, uint64_t seed,
                         at::ScalarType dtype = at::kDouble);

/// `rank`'s range of `whole` along `dim`, in memory of its own.
at::Tensor slice_of(const at::Tensor& whole, const base::Split& split, int64_t dim, int rank);

/// `rank`'s slice of a parameter, in memory of its own.
at::Tensor slice_of(const at::Tensor& whole, const base::ShardRule& rule, int rank);

/// Σ of the elementwise product, in fp64.
double dot(const at::Tensor& a, const at::Tensor& b);

}  // namespace shardwise::testing
