// `shardwise bench comm`: how long an all_reduce takes here, beside copying as many bytes once.
//
// Measured in bench_comm.cpp; flags and tables are in bench_comm_command.cpp.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "shardwise/cli/bench_document.h"
#include "shardwise/cli/commands.h"
#include "shardwise/comm/group.h"

namespace shardwise::cli {

/// Sizes in bytes, each in every use, for `seconds`.
struct CommBench {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<BufferUse> uses;
  double seconds;
};

/// 4096 as "4KB".
std::string size_text(int64_t bytes);

/// Collective: of every size in every use, three calls in this order: all_reduce_ of a tensor that peers can
/// read
/// ("all_reduce"), of one of the rank's own ("all_reduce_unregistered"), and one copy of as many bytes by
/// each rank at the same time ("memcpy"). Rank 0's `show` is told how far it is.
std::vector<CommPoint> measure_comm(const CommBench& bench, const comm::Group& group,
                                    const std::function<void(const std::string&)>& show);

/// As those of commands.h.
int bench_comm_command(const Call& call);

}  // namespace shardwise::cli
