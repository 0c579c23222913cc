// Main gradients of which each data-parallel rank keeps those that it owns (ZeRO stage 2, Rajbhandari et al.
// 2020).
#pragma once
#include "shardwise/parallel/owned_rows.h"
#include "shardwise/parallel/parameter_parts.h"

namespace shardwise::parallel {

/// The main gradients of a rank's parameters: main_grad of every part is in the same buffer, which holds
/// those of one micro-batch and of the part that backward is in; owned_grad are the sums of the rows that the
/// rank owns.
class ShardedGradients {
 public:
  /// Allocates main_grad and owned_grad of every trained parameter, zeroed: buffers of the elements of the
  /// largest part, and of the first part if it is tied, in the symmetric heap of the data-parallel `group` if
  /// it has one; and the rows that this rank owns, outside of it. The ranks of `group` must hold the same
  /// shards. Errors: c10::ValueError if main gradients have different dtypes.
  ShardedGradients(const ParameterParts& parts, const OwnedRows& owned, const comm::Group& group);

  /// Adds the main gradients of a part, summed over the ranks in rank order, to owned_grad, and zeroes them.
  /// To be called as soon as backward has completed them, before it begins the part before; by a rank that
  /// has fewer micro-batches than others too, whose gradients are zero. Collective. Cost: one reduce_scatter
  /// of the part's elements and a barrier, before which peers read the buffer.
  void sum_part_(size_t part);

 private:
  /// Where a part's main gradients are, and the sums of the rows that this rank owns, both without gaps.
  struct Part {
    at::Tensor buffer;  // [elements]
    at::Tensor owned;   // [elements of the owned rows]
    base::Split owners;
  };
  comm::Group group_;
  std::vector<Part> parts_;
};

}  // namespace shardwise::parallel
