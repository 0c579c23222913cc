// `shardwise bench comm --tune`: finds the largest size at which one-shot all_reduce is faster on this
// machine.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/cli/bench_comm.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::cli {

/// Two groups of the same ranks: one uses one-shot all_reduce for all inline sizes, the other two-shot.
struct BothAlgorithms {
  comm::Group one_shot, two_shot;
};

/// Connects both groups, under names derived from `job`. Collective.
BothAlgorithms connect_both(const comm::Group& group, const std::string& job,
                            std::chrono::milliseconds timeout);

/// Times "one_shot" and "two_shot" on the symmetric heap at every size and cache state, interleaved. Rank 0
/// calls `show` with the progress. Collective.
std::vector<CommPoint> measure_both(const CommBench& bench, const BothAlgorithms& groups,
                                    const std::function<void(const std::string&)>& show);

/// Returns the one-shot limit in bytes that minimizes the geometric mean of the measured calls' times; 0 if
/// two-shot is faster at every size.
int64_t best_one_shot_bytes(const std::vector<CommPoint>& points);

/// Returns the table of one cache state.
std::string tuning_text(const std::vector<CommPoint>& points, CacheState state);

}  // namespace shardwise::cli
