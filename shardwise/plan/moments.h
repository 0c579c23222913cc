// The moments of a step that may be its fullest, each with the tensors that are alive in it.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/memory.h"

namespace shardwise::plan {

/// What a rank holds besides the model's states.
struct Moment {
  std::string name;
  Entries entries;
};
using Moments = std::vector<Moment>;

/// A block's forward, in the step's own or, where it is recomputed in full, in backward.
enum class Run { first, again };

/// What one block's forward holds, without what the blocks below have kept.
Moments forward_moments(const Workload& workload, int rank, int64_t layer, Run run);
/// The same of its backward; none when no gradient is wanted of it. What recomputation had not kept has been
/// made again.
Moments backward_moments(const Workload& workload, int rank, int64_t layer);

/// Final norm, head and loss.
Moments head_forward_moments(const Workload& workload, int rank);
Moments head_backward_moments(const Workload& workload, int rank);

}  // namespace shardwise::plan
