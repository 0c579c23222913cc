// A report of the ranks' state at the end of a run: the shapes of every parameter's shards, and memory use.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/train/trainer.h"

namespace shardwise::train {

/// A parameter and the shape of each rank's shard of it.
struct ShardShapes {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<std::vector<int64_t>> by_rank;
};

/// One rank's tensor bytes. Weights that replicas share are the first one's. The peaks cover the time since
/// the rank started. `peak_private` includes weights, main gradients and optimizer state; it is 0 if the
/// build does not count memory.
struct MemoryBreakdown {
  int64_t weights = 0;
  int64_t main_gradients = 0;                  // to which backward adds
  int64_t owned_gradients = 0;                 // as plan::ModelStates
  int64_t shared_states = 0;                   // the part of weights and main_gradients in a symmetric heap
  int64_t optimizer = 0;                       // moments and fp32 master weights
  int64_t peak_private = 0;                    // outside the symmetric heaps
  std::optional<int64_t> peak_symmetric_heap;  // as symmetric_heaps_peak

  /// Returns the model states outside the symmetric heaps.
  int64_t private_states() const {
    return weights + main_gradients + owned_gradients - shared_states + optimizer;
  }
};

/// The shard shapes of every parameter over the tensor-parallel ranks, and the memory use of every rank.
struct ShardReport {
  std::vector<ShardShapes> parameters;
  std::vector<MemoryBreakdown> ranks;  // of the job
};

/// Collects the report (collective). Cost: one all_gather of seven numbers.
ShardReport make_shard_report(const Trainer& trainer, const comm::Mesh& mesh);

}  // namespace shardwise::train
