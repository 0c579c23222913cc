// The batch in two halves that take turns: while one computes, the sum over the ranks that the other's last
// layer needs is under way, forward and backward. For TP, whose sums leave no rows to compute meanwhile.
// Source: Domino (Wang et al. 2024, arXiv 2409.15241), its split of the rows.
#pragma once
#include <c10/util/FunctionRef.h>

#include <array>

#include "shardwise/nn/residual.h"

namespace shardwise::nn {

/// In the forward's order: layer 1 of half 0, layer 1 of half 1, layer 2 of half 0, ... Backward goes the
/// other way round. There a sum ends not as soon as autograd could, but after the layer that comes next in
/// that order: the node that ends it has a number from before that layer's nodes (Step::turn).
class Halves {
 public:
  /// A layer with one crossing in and one out; its last sum may be left.
  using Layer = c10::function_ref<Residual<Invariant>(Residual<Invariant> x, const Step& step)>;

  /// Cuts `x` [s, b, h] along the batch; the first half is the larger one. Errors: those of check_step
  /// and check_halves.
  Halves(const Placed<Invariant>& x, const Step& step);

  void apply(Layer layer);
  /// [s, b, h]; ends the sums that are left.
  Placed<Invariant> joined() &&;

 private:
  struct Half {
    Residual<Invariant> x;
    Step step;
  };
  static std::array<Half, 2> cut(const Placed<Invariant>& x, const Step& step);

  std::array<Half, 2> halves_;
  uint64_t next_turn_;
};

}  // namespace shardwise::nn
