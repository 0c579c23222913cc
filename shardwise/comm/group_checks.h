// Checks of Group's arguments before a collective, with the same result on all ranks, so that no rank hangs.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/base/split.h"
#include "shardwise/comm/symmetric_heap.h"

namespace shardwise::comm {

/// All checks throw c10::ValueError naming `op`. Those with a `dim` return it as a non-negative dim.
void check_root(const char* op, int root, int size);
void check_peer(const char* op, int peer, int rank, int size);
int64_t check_shard(const char* op, const at::Tensor& shard, const base::Split& split, int64_t dim, int rank,
                    int size);
int64_t check_full(const char* op, const at::Tensor& x, const base::Split& split, int64_t dim, int size);
void check_output(const char* op, const at::Tensor& out, const at::Tensor& x);
/// Checks that `x` is dense and on the backend's device.
void check_dense_on(const char* op, const at::Tensor& x, at::Device device);
/// Checks the input of an asynchronous collective. `symmetric` may be null.
void check_async_input(const char* op, const at::Tensor& x, at::Device device,
                       const SymmetricHeap* symmetric);
void check_divisible(const char* op, const at::Tensor& x, int size);

}  // namespace shardwise::comm
