// `shardwise bench overlap`: what the collectives inside the linear layers cost beside the bare products.
//
// Measured in bench_overlap.cpp; flags and tables are in bench_overlap_command.cpp.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "shardwise/cli/bench_rounds.h"
#include "shardwise/cli/commands.h"
#include "shardwise/comm/group.h"

namespace shardwise::cli {

/// Two linear layers of an MLP under TP+SP: [rows, hidden] × [hidden, ffn/t], and [rows, ffn/t] × [ffn/t,
/// hidden].
struct OverlapBench {
  at::ScalarType dtype;
  int64_t rows, hidden, ffn;
  double seconds;  // of each layer
};

/// A layer with its collectives, beside its products and not, and the same products of what is there already
/// without any.
struct OverlapMeasured {
  std::string name;
  Measured on, off, bare;
};

/// Collective: "AllGather+GEMM" and "GEMM+ReduceScatter", each forward alone and with its backward.
std::vector<OverlapMeasured> measure_overlap(const OverlapBench& bench, const comm::Group& group,
                                             const std::function<void(const std::string&)>& show);

/// As those of commands.h.
int bench_overlap_command(const Call& call);

}  // namespace shardwise::cli
