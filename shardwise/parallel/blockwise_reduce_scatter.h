// A reduce_scatter along the sequence whose input is computed one rank's rows at a time. With Overlap::on
// each block of rows is sent as soon as it is computed; otherwise all are sent at the end. The blocks and the
// result are the same bits.
#pragma once
#include <c10/util/FunctionRef.h>

#include <memory>

#include "shardwise/comm/work.h"
#include "shardwise/parallel/gathered_rows.h"

namespace shardwise::parallel {

/// Collective: sums `full` [s, b, n] over the ranks, in rank order on every backend, and returns this rank's
/// rows [s/t, b, n]. `full` must be contiguous and allocated by `step.group.empty`; the caller must not write
/// to it afterward, but may release it.
at::Tensor reduce_scatter_rows(const at::Tensor& full, const Step& step);

/// A reduce_scatter of a Partial [s, b, n]: call `compute`, then `wait`.
class BlockwiseReduceScatter {
 public:
  /// Allocates the input of the reduce_scatter. `sizes`: [s, b, n] with s the step's full sequence.
  BlockwiseReduceScatter(at::IntArrayRef sizes, at::ScalarType dtype, const Step& step);

  /// Collective: calls write(rows, rank) once for each rank; it must write that rank's rows of this rank's
  /// partial sum, a matrix [s_rank·b, n].
  void compute(c10::function_ref<void(at::Tensor& rows, int rank)> write);
  /// Collective: completes the reduce_scatter and returns this rank's rows of the sum, [s/t, b, n].
  at::Tensor wait();

 private:
  const Step& step_;  // outlives this
  at::Tensor partial_;
  std::unique_ptr<comm::ChunkedReduceScatter> in_flight_;
};

}  // namespace shardwise::parallel
