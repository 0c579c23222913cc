// How the ranks of a group meet to be timed together.
#pragma once
#include <algorithm>

#include "shardwise/cli/bench_rounds.h"
#include "shardwise/comm/gather_values.h"

namespace shardwise::cli {

/// `group` outlives it.
inline Meeting meeting_of(const comm::Group& group) {
  const auto largest = [&group](const std::vector<double>& own) {
    const std::vector<double> all = comm::gather_values(own, group);
    std::vector<double> most = own;
    for (size_t i = 0; i < all.size(); ++i) most[i % own.size()] = std::max(most[i % own.size()], all[i]);
    return most;
  };
  return {.barrier = [&group] { group.barrier(); }, .largest = largest};
}

}  // namespace shardwise::cli
