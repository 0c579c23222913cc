// Peak memory of a rank in a training step: model states, tensors saved for backward, and short-lived
// tensors.
//
// When all parameters are trained the peak is at the loss or in the backward of the last block. When most are
// frozen it is in the last block's forward, or in the backward of a lower block that requires other
// gradients. Internal buffers of vendor GEMMs, rotary tables and the like are left out: tests require the
// result to be within 1 % of what allocators count.
#pragma once
#include "shardwise/base/pipeline.h"
#include "shardwise/plan/snapshots.h"

namespace shardwise::plan {

/// Returns the snapshots of one micro-batch that may be a step's peak, in their order.
MemorySnapshots pass_candidates(const Workload& workload, int rank);
/// Returns those of a step: also the optimizer's.
MemorySnapshots peak_candidates(const Workload& workload, int rank);

/// The largest memory of a rank in a training step.
struct Peak {
  ModelStates states;             // weights, gradients and optimizer
  MemorySnapshot private_memory;  // the peak of private memory
  MemorySnapshot symmetric_heap;  // the peak of the symmetric heap, not always at the same point
  int64_t shared_states = 0;      // bytes of weights and main gradients in the symmetric heap
  /// Returns the peak of private memory.
  int64_t private_bytes() const {
    return total(states) - shared_states + total(private_memory.allocations, Pool::private_memory);
  }
  /// Returns the peak of the symmetric heap, of all groups together.
  int64_t symmetric_heap_bytes() const {
    return shared_states + total(symmetric_heap.allocations, Pool::symmetric_heap);
  }
  /// Returns the sum of the two pools' peaks, as their counters report it.
  int64_t bytes() const { return private_bytes() + symmetric_heap_bytes(); }
};
/// Returns the peak of one rank of the first replica. Errors: those of Workload::validate_rank.
Peak training_peak(const Workload& workload, int rank);
/// Returns the peak of one rank of a pipeline stage of the first replica, which runs the stage's actions of
/// `pipeline`. Messages that wait for a slow peer are not counted.
Peak stage_peak(const Workload& workload, int rank, const base::Pipeline& pipeline);
/// Returns the peak of the same rank of another replica, which differs in its states; from 0 to dp − 1.
Peak peak_of_replica(Peak first, const Workload& workload, int rank, int replica);

}  // namespace shardwise::plan
