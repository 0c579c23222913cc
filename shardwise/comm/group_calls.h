// What Group's collectives cost, and those of backends without shared memory as c10d's calls; nothing is
// checked or counted. For group*.cpp only.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shardwise/base/split.h"

namespace shardwise::comm {

/// Uninitialized, as `x` but for one dim.
at::Tensor empty_with_size(const at::Tensor& x, int64_t dim, int64_t size);
/// Into `whole`, contiguous.
void gather_by_calls(c10d::Backend& backend, at::Tensor& whole, const at::Tensor& shard,
                     const base::Split& split, int64_t dim);
void scatter_sum_by_calls(c10d::Backend& backend, at::Tensor& out, const at::Tensor& x,
                          const base::Split& split, int64_t dim);
/// Whether nothing goes on by itself between a call's begin and its wait.
bool is_synchronous(c10d::Backend& backend);
/// What a rank sends in an all_reduce; its own slice is that of Split::even over the flat message.
int64_t all_reduce_bytes(const at::Tensor& x, int rank, int size);
/// What a rank sends in a reduce_scatter of `x` along dim 0.
int64_t reduce_scatter_bytes(const at::Tensor& x, const base::Split& split, int rank);

}  // namespace shardwise::comm
