// Asynchronous forms of f and f*, whose all_reduce is in flight while other sequences are computed. With
// Overlap::off both are synchronous.
#pragma once
#include <memory>

#include "shardwise/comm/work.h"
#include "shardwise/parallel/row_product.h"

namespace shardwise::parallel {

/// f with an asynchronous backward: one autograd node starts the all_reduce of the gradient, and a second
/// node waits for it. The second has the autograd sequence number `wait_at`; the engine always runs the ready
/// node with the highest number, so nodes with higher numbers run while the all_reduce is in flight.
/// Shapes: `x` [s, b, h] I → [s, b, h] R.
/// Forward: nothing. Backward: all_reduce.
Placed<Replicated> enter_async(const Placed<Invariant>& x, const Step& step, uint64_t wait_at);

/// f* with an asynchronous forward: its all_reduce is in flight from construction to `wait`.
class LeaveAsync {
 public:
  /// Collective: starts the all_reduce of `pending`. Its `y` may have gradients recorded
  /// (row_product<Partial>).
  LeaveAsync(PendingReduction pending, const Step& step);
  /// Completes the all_reduce and returns Σ_ranks y + bias, [s, b, h] I. Backward: nothing. Call it once.
  Placed<Invariant> wait();

 private:
  PendingReduction pending_;
  Step step_;
  std::shared_ptr<comm::Work> work_;  // null: nothing is in flight
};

}  // namespace shardwise::parallel
