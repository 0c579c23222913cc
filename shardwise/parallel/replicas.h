// The slices of sharded parameters that several ranks hold, such as KV heads when there are more ranks.
#pragma once
#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::parallel {

/// A slice of a parameter along its sharded dim that at least two ranks hold.
struct ReplicatedSlice {
  std::vector<int> holders;  // ascending
  int64_t size;              // along the dim
  int64_t local_begin;       // in this rank's shard, if it holds the slice
  bool is_held;
};

/// Returns the replicated slices of a sharded parameter, in one order on every rank.
std::vector<ReplicatedSlice> replicated_slices(const base::ShardRule& rule, int rank);

}  // namespace shardwise::parallel
