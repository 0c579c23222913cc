// The split-batch schedule for TP: splits a micro-batch into two halves and computes one half while the
// all_reduce of the other is in flight, forward and backward. It drives a block's two branches from outside,
// so the layers do not depend on it. Source: Domino (Wang et al. 2024, arXiv 2409.15241), row split.
//
// It helps with backends that progress asynchronously (NCCL). On shared memory and over MPI, ranks reduce
// inside their calls: no communication is hidden, and the products are smaller (docs/adr/0019).
#pragma once
#include <array>
#include <optional>
#include <string>

#include "shardwise/nn/block.h"
#include "shardwise/parallel/async_conjugate.h"

namespace shardwise::nn {

/// Returns the rule of the schedule that a batch of b sequences with the settings of `step` breaks, as
/// "needs …; got …", or "" if it breaks none. Dropout is not allowed, because masks are drawn for full
/// batches, nor is full recomputation, because a recomputed block completes its own reductions.
std::string broken_split_batch_rule(const Step& step, int64_t b, bool is_sequence_parallel);

/// Checks these rules, before any communication. Errors: c10::ValueError naming the rule that is broken.
void check_split_batch(const Step& step, int64_t b, bool is_sequence_parallel);

/// Two halves of a micro-batch that run through the blocks in turn. Forward order: attention of half 0,
/// attention of half 1, MLP of half 0, MLP of half 1, then the next block. Backward order: the reverse.
///
/// Each branch starts its all_reduce at its end, and the schedule waits for it after the next branch in this
/// order. In backward autograd sets the order: it runs the ready node with the highest sequence number. The
/// node that waits for a branch's all_reduce therefore gets a number below those of the branch that must run
/// first.
class SplitBatch {
 public:
  /// Splits `x` [s, b, h] along the batch into copies; if the batch is odd, the first half is the larger one.
  /// Errors: see check_step and check_split_batch.
  SplitBatch(Placed<Invariant> x, const Step& step);

  /// Runs a block on both halves, without calling observers.
  void apply(const BlockLayers& block);
  /// Waits for the outstanding all_reduces and returns both halves as one batch, [s, b, h].
  Placed<Invariant> concatenated() &&;

 private:
  struct Half {
    Placed<Invariant> x;
    Step step;
    std::optional<parallel::LeaveAsync> branch;  // the last branch's output, in flight; to be added to x

    /// Completes and adds the outstanding branch output, if any, and returns x.
    const Placed<Invariant>& wait();
  };
  static std::array<Half, 2> split(Placed<Invariant>&& x, const Step& step);
  template <class Norm, class Region>
  void run_branch(const Norm& norm, const Region& region);

  std::array<Half, 2> halves_;
  uint64_t next_wait_;  // the autograd sequence number of the next branch's wait node
};

}  // namespace shardwise::nn
