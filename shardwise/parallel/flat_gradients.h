// The main gradients of a model in one tensor, which data-parallel ranks sum in one call.
#pragma once
#include "shardwise/parallel/owned_rows.h"

namespace shardwise::parallel {

/// The main gradients of a rank's parameters, in their order and without gaps.
class FlatGradients {
 public:
  /// Allocates main_grad of every trained parameter as a part of one tensor, in the symmetric heap of the
  /// data-parallel `group` if it has one, and zeroes it. A later zero_grad_ keeps it. The ranks of `group`
  /// must hold the same shards. Errors: c10::ValueError if main gradients have different dtypes.
  FlatGradients(const ParamSpecs& specs, const comm::Group& group);

  /// Sums the gradients over the data-parallel ranks, in rank order; afterward they are equal bit for bit.
  /// Collective. Cost: one all_reduce of all elements, in place; nothing in a group of one.
  void sum_();
  /// Sums the rows that this rank owns of one part, to the same bits; the others keep this rank's part of the
  /// sum. Collective. Peers may read the others until the next collective has completed. Cost: one
  /// reduce_scatter of all elements, in place.
  void sum_owned_(const OwnedRows& owned);
  /// Zeroes the rows that this rank does not own.
  void zero_others_(const OwnedRows& owned);

 private:
  comm::Group group_;
  at::Tensor all_;  // [elements]; undefined if every parameter is frozen
};

}  // namespace shardwise::parallel
