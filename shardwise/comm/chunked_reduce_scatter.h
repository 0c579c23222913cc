// The handle of a pipelined reduce_scatter along dim 0: the caller hands over one rank's rows at a time.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::comm {

/// An in-flight reduce_scatter that Group::reduce_scatter_chunked started. Until `wait`, other collectives of
/// the group may be called, the same ones on all ranks.
class ChunkedReduceScatter {
 public:
  virtual ~ChunkedReduceScatter() = default;
  /// Returns the rank whose rows the caller computes as the `i`-th chunk, 0 <= i < size.
  virtual int chunk_order(int i) const = 0;
  /// Reports that the rows of rank chunk_order(i) are final. Collective; call it once per i, ascending.
  virtual void chunk_ready(int i) = 0;
  /// Sums the chunks over the ranks in rank order and writes this rank's rows into `out` [split.range(rank),
  /// ...], which must be contiguous. Collective. Errors: base::CommError.
  virtual void wait(at::Tensor& out) = 0;
};

}  // namespace shardwise::comm
