// f and f* with their all_reduce in flight while other rows compute: what a split-batch schedule
// (nn/split_batch.h) is made of. Without overlap (Overlap::off) both are the synchronous ones.
#pragma once
#include <memory>

#include "shardwise/comm/work.h"
#include "shardwise/parallel/row_product.h"

namespace shardwise::parallel {

/// f, whose backward starts its all_reduce at once and waits for it later: in the node that has the autograd
/// sequence number `wait_at`, of which the engine runs the ready one with the highest first. Shapes: `x` [s,
/// b, h] I → [s, b, h] R. Backward: all_reduce.
Placed<Replicated> enter_async(const Placed<Invariant>& x, const Step& step, uint64_t wait_at);

/// f*, whose forward all_reduce is in flight from construction to `wait`.
class LeaveAsync {
 public:
  /// Collective: starts the all_reduce of `pending`, which row_product<Partial> may have recorded gradients
  /// for.
  LeaveAsync(PendingReduction pending, const Step& step);
  /// Σ_ranks y + bias, [s, b, h] I. Backward of y: nothing. To be called once.
  Placed<Invariant> wait();

 private:
  PendingReduction pending_;
  Step step_;
  std::shared_ptr<comm::Work> work_;  // null: nothing is in flight
};

}  // namespace shardwise::parallel
