// The Synchronizer of a group's ranks.
#pragma once
#include <algorithm>

#include "shardwise/bench/timing.h"
#include "shardwise/comm/gather_values.h"

namespace shardwise::bench {

/// Returns a Synchronizer that is valid during the lifetime of `group`.
inline Synchronizer synchronizer_of(const comm::Group& group) {
  const auto max_over_ranks = [&group](const std::vector<double>& local) {
    const std::vector<double> all = comm::gather_values(local, group);
    std::vector<double> max = local;
    for (size_t i = 0; i < all.size(); ++i) max[i % max.size()] = std::max(max[i % max.size()], all[i]);
    return max;
  };
  return {.barrier = [&group] { group.barrier(); }, .max_over_ranks = max_over_ranks};
}

}  // namespace shardwise::bench
