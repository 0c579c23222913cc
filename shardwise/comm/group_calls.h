// Costs of Group's collectives, and c10d calls for backends without a symmetric heap. These functions check
// and count nothing. For group*.cpp only.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shardwise/base/split.h"

namespace shardwise::comm {

/// Returns an uninitialized tensor like `x`, with `size` in `dim`.
at::Tensor empty_with_size(const at::Tensor& x, int64_t dim, int64_t size);
/// Gathers the ranks' shards into `full`, which must be contiguous.
void c10d_all_gather(c10d::Backend& backend, at::Tensor& full, const at::Tensor& shard,
                     const base::Split& split, int64_t dim);
/// Sums `x` over the ranks and writes this rank's range into `out`.
void c10d_reduce_scatter(c10d::Backend& backend, at::Tensor& out, const at::Tensor& x,
                         const base::Split& split, int64_t dim);
/// Returns true if the backend makes no progress between a call's return and its Work's wait.
bool is_synchronous(c10d::Backend& backend);
/// Returns the bytes that a rank sends in an all_reduce; Split::even gives its slice.
int64_t all_reduce_bytes(const at::Tensor& x, int rank, int size);
/// Returns the bytes that a rank sends in a reduce_scatter of `x` along dim 0.
int64_t reduce_scatter_bytes(const at::Tensor& x, const base::Split& split, int rank);

}  // namespace shardwise::comm
