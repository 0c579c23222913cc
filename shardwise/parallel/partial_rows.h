// A Partial that is made row block by row block, and its crossing to shards along the sequence. The fused
// products hand each block over as it is made (Overlap::on) or all of them at the end; the blocks and their
// sums are the same.
#pragma once
#include <c10/util/FunctionRef.h>

#include <memory>

#include "shardwise/comm/chunked_reduce_scatter.h"
#include "shardwise/parallel/rows.h"

namespace shardwise::parallel {

/// Collective: this rank's rows of the sum over the ranks of `whole` [s, b, n], contiguous and from
/// `step.group.empty`; in rank order on every backend. `whole` may be dropped then, but not written to.
at::Tensor scattered_sum(const at::Tensor& whole, const Step& step);

class PartialRows {
 public:
  /// [s, b, n] with s the step's whole sequence.
  PartialRows(at::IntArrayRef sizes, at::ScalarType dtype, const Step& step);

  /// Collective: `write(rows, rank)` writes a rank's rows, a matrix [s_rank·b, n]; once for each rank.
  void make(c10::function_ref<void(at::Tensor& rows, int rank)> write);
  /// Collective: this rank's rows of the sum over the ranks, [s/t, b, n].
  at::Tensor sum();
  /// As `make` left it; not written to any more.
  const at::Tensor& whole() const { return whole_; }

 private:
  const Step& step_;  // outlives this
  at::Tensor whole_;
  std::unique_ptr<comm::ChunkedReduceScatter> sum_;
};

}  // namespace shardwise::parallel
