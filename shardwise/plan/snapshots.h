// Candidate points of peak memory in a training step, with the tensors live at each.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/memory.h"

namespace shardwise::plan {

/// The tensors of one rank that are live at one point of a step, without the model states.
struct MemorySnapshot {
  std::string name;         // which point
  Allocations allocations;  // live there
};
/// Snapshots in the order of the step.
using MemorySnapshots = std::vector<MemorySnapshot>;
/// Appends `more`, in each of which `live` is live too.
void append(MemorySnapshots& snapshots, const MemorySnapshots& more, const Allocations& live = {});

/// A block's forward in the forward pass, or its recomputation in backward (full recomputation).
enum class ForwardRun { first, recompute };

/// Returns the snapshots of one block's forward, of both halves of a split batch in turn, without what
/// earlier blocks have saved.
MemorySnapshots forward_snapshots(const Workload& workload, int rank, int64_t layer, ForwardRun run);
/// Returns the snapshots of one block's backward, of both halves of a split batch in turn, without what
/// earlier blocks have saved; none if it has no backward. Tensors that recomputation did not save have been
/// recomputed.
MemorySnapshots backward_snapshots(const Workload& workload, int rank, int64_t layer);

/// Returns the snapshots of the final norm, head and loss.
MemorySnapshots head_forward_snapshots(const Workload& workload, int rank);
/// Returns the snapshots of the backward of final norm, head and loss.
MemorySnapshots head_backward_snapshots(const Workload& workload, int rank);

}  // namespace shardwise::plan
