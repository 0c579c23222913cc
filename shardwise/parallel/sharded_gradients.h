// Main gradients of which each data-parallel rank keeps those that it owns (ZeRO stage 2, Rajbhandari et al.
// 2020).
#pragma once
#include "shardwise/parallel/owned_rows.h"
#include "shardwise/parallel/parameter_parts.h"

namespace shardwise::parallel {

/// The main gradients of a rank's parameters, part by part. All parts share one buffer for main_grad, which
/// has the gradients of the part whose backward is running, of one micro-batch; owned_grad adds up those of
/// the rows that the rank owns, over micro-batches and ranks.
class ShardedGradients {
 public:
  /// Allocates main_grad and owned_grad of every trained parameter, zeroed: buffers of the elements of the
  /// largest part, and of the first part if it is tied, in the symmetric heap of the data-parallel `group` if
  /// it has one; and the rows that this rank owns, outside of it. The ranks of `group` must hold the same
  /// shards. Errors: c10::ValueError if main gradients have different dtypes.
  ShardedGradients(const ParameterParts& parts, const OwnedRows& owned, const comm::Group& group);

  /// Sums the main gradients of a part over the ranks, in rank order, adds the owned rows to owned_grad, and
  /// zeroes the buffer. Call it when backward has completed the part, before it enters the next one, on every
  /// rank equally often: a rank with fewer micro-batches adds zeros. Collective. Cost: one reduce_scatter of
  /// the part's elements, and a barrier, since peers read the buffer until then.
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
