// The instants of a step that may be its fullest, each with the tensors that are alive in it.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/memory.h"

namespace shardwise::plan {

/// What a rank holds besides the model's states.
struct Instant {
  std::string name;
  Entries entries;
};
using Instants = std::vector<Instant>;

/// A block's forward, in the step's own or, where it is recomputed in full, in backward.
enum class Run { first, again };

/// What one block's forward holds, without what the blocks below have kept.
Instants forward_instants(const Workload& workload, int rank, int64_t layer, Run run);
/// The same of its backward; none when no gradient is wanted of it. What recomputation had not kept has been
/// made again.
Instants backward_instants(const Workload& workload, int rank, int64_t layer);

/// Final norm, head and loss.
Instants head_forward_instants(const Workload& workload, int rank);
Instants head_backward_instants(const Workload& workload, int rank);

}  // namespace shardwise::plan
