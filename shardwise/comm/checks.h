// What Group checks of its arguments before any collective, alike on all ranks, so that nobody hangs.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/base/split.h"
#include "shardwise/comm/symmetric_heap.h"

namespace shardwise::comm {

/// All throw c10::ValueError naming `op`. Those that take a dim return it counted from the front.
void check_root(const char* op, int root, int size);
void check_peer(const char* op, int peer, int rank, int size);
int64_t check_shard(const char* op, const at::Tensor& shard, const base::Split& split, int64_t dim, int rank,
                    int size);
int64_t check_whole(const char* op, const at::Tensor& x, const base::Split& split, int64_t dim, int size);
void check_alike(const char* op, const at::Tensor& out, const at::Tensor& x);
/// Of a collective in parts: `symmetric` may be null.
void check_begun(const char* op, const at::Tensor& x, at::Device device, const SymmetricHeap* symmetric);
void check_divides(const char* op, const at::Tensor& x, int size);

}  // namespace shardwise::comm
