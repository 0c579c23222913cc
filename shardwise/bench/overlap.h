// Times the linear layers of TP+SP with their collectives, next to the GEMMs alone.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "shardwise/bench/timing.h"
#include "shardwise/comm/group.h"

namespace shardwise::bench {

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

/// Called with a layer's name and how many of its repetitions are done.
using OnLayerProgress = std::function<void(const std::string& name, int64_t done, int64_t repetitions)>;

/// Times "AllGather+GEMM" and "GEMM+ReduceScatter", each forward alone and with its backward. Rank 0 calls
/// `on_progress`. Collective.
std::vector<OverlapMeasured> measure_overlap(const OverlapBench& bench, const comm::Group& group,
                                             const OnLayerProgress& on_progress);

}  // namespace shardwise::bench
