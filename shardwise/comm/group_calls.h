// Group's collectives as c10d's calls, for backends without shared memory; nothing is checked or counted. For
// group*.cpp only.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shardwise/base/split.h"

namespace shardwise::comm {

/// Uninitialised, as `x` but for one dim.
at::Tensor empty_with_size(const at::Tensor& x, int64_t dim, int64_t size);
/// Into `whole`, contiguous.
void gather_by_calls(c10d::Backend& backend, at::Tensor& whole, const at::Tensor& shard,
                     const base::Split& split, int64_t dim);
void scatter_sum_by_calls(c10d::Backend& backend, at::Tensor& out, const at::Tensor& x,
                          const base::Split& split, int64_t dim);
/// What a rank sends in a reduce_scatter of `x` along dim 0.
int64_t reduce_scatter_bytes(const at::Tensor& x, const base::Split& split, int rank);

}  // namespace shardwise::comm
