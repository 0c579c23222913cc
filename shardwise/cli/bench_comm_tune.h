// `shardwise bench comm --tune`: up to which size an all_reduce is faster in one shot on this machine.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/cli/bench_comm.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::cli {

/// Two groups of the same ranks, of which one does in one shot what the other does in two.
struct BothForms {
  comm::Group one_shot, two_shot;
};

/// Collective: they meet at names derived from `job`'s.
BothForms connect_both(const comm::Group& group, const std::string& job, std::chrono::milliseconds timeout);

/// Collective: of every size in every use the calls "one_shot" and "two_shot" on memory that peers can read,
/// in turns. Rank 0's `show` is told how far it is.
std::vector<CommPoint> measure_both(const CommBench& bench, const BothForms& groups,
                                    const std::function<void(const std::string&)>& show);

/// The size up to which to go in one shot, so that the measured calls, weighted alike, are fastest; 0: none.
int64_t best_one_shot_bytes(const std::vector<CommPoint>& points);

/// The table of one use.
std::string tuning_text(const std::vector<CommPoint>& points, BufferUse use);

}  // namespace shardwise::cli
