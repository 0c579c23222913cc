// Batch-split overlap for TP: the micro-batch in two halves, of which one computes while the all_reduce of
// the other is in flight, forward and backward. It drives a block's two branches from outside; the layers
// know nothing of it. Source: Domino (Wang et al. 2024, arXiv 2409.15241), its row split.
//
// It pays on backends that progress asynchronously (NCCL). On shared memory and over MPI ranks reduce inside
// their calls: nothing is hidden and the products are smaller (docs/adr/0019).
#pragma once
#include <array>
#include <optional>

#include "shardwise/nn/block.h"
#include "shardwise/parallel/async_conjugate.h"

namespace shardwise::nn {

/// Forward order: branch 1 of half 0, branch 1 of half 1, branch 2 of half 0, ...; backward is the reverse.
/// An all_reduce starts when its branch ends and is waited for after the next branch in that order. Backward
/// gets its order from autograd, which runs the ready node with the highest sequence number: the node that
/// waits is given a number from before the nodes of the branch that is to run first.
class SplitBatch {
 public:
  /// Splits `x` [s, b, h] along the batch; the first half is the larger one. Errors: those of check_step and
  /// check_split_batch.
  SplitBatch(const Placed<Invariant>& x, const Step& step);

  /// Runs a block on both halves. Its observers see nothing of them.
  void apply(const BlockLayers& block);
  /// [s, b, h]; waits for what is in flight.
  Placed<Invariant> joined() &&;

 private:
  struct Half {
    Placed<Invariant> x;
    Step step;
    std::optional<parallel::LeaveAsync> added;  // in flight, to be added to x

    const Placed<Invariant>& wait();
  };
  static std::array<Half, 2> split(const Placed<Invariant>& x, const Step& step);
  template <class Norm, class Region>
  void run_branch(const Norm& norm, const Region& region);

  std::array<Half, 2> halves_;
  uint64_t next_wait_;  // the autograd sequence number for the next branch's wait
};

}  // namespace shardwise::nn
