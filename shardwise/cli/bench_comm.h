// `shardwise bench comm`: times all_reduce on this machine, next to a memcpy of the same size.
//
// bench_comm.cpp has the measurement, bench_comm_command.cpp the flags and tables.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "shardwise/cli/bench_document.h"
#include "shardwise/cli/commands.h"
#include "shardwise/comm/group.h"

namespace shardwise::cli {

/// The sizes in bytes to measure, each in every cache state for `seconds`.
struct CommBench {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<CacheState> states;
  double seconds;
};

/// Formats 4096 as "4KB".
std::string size_text(int64_t bytes);

/// Times three calls at every size and cache state, in this order: all_reduce_ of a tensor on the symmetric
/// heap
/// ("all_reduce"), all_reduce_ of a tensor outside it ("all_reduce_unregistered"), and a copy of the same
/// size by each rank at the same time ("memcpy"). Rank 0 calls `show` with the progress. Collective.
std::vector<CommPoint> measure_comm(const CommBench& bench, const comm::Group& group,
                                    const std::function<void(const std::string&)>& show);

/// Runs the command; see commands.h.
int bench_comm_command(const Call& call);

}  // namespace shardwise::cli
