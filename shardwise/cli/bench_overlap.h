// `shardwise bench overlap`: times the linear layers of TP+SP with their collectives, next to the GEMMs
// alone.
//
// bench_overlap.cpp has the measurement, bench_overlap_command.cpp the flags and tables.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "shardwise/cli/bench_timing.h"
#include "shardwise/cli/commands.h"
#include "shardwise/comm/group.h"

namespace shardwise::cli {

/// The two linear layers of an MLP under TP+SP: [rows, hidden] × [hidden, ffn/t] and [rows, ffn/t] × [ffn/t,
/// hidden].
struct OverlapBench {
  at::ScalarType dtype;
  int64_t rows, hidden, ffn;
  double seconds;  // per layer
};

/// The times of a layer with collectives overlapped with its GEMMs (on) and not (off), and of the GEMMs alone
/// on gathered inputs.
struct OverlapMeasured {
  std::string name;
  Measured on, off, gemm;
};

/// Times "AllGather+GEMM" and "GEMM+ReduceScatter", each forward alone and with its backward. Collective.
std::vector<OverlapMeasured> measure_overlap(const OverlapBench& bench, const comm::Group& group,
                                             const std::function<void(const std::string&)>& show);

/// Runs the command; see commands.h.
int bench_overlap_command(const Call& call);

}  // namespace shardwise::cli
