// A reduce_scatter along dim 0 in steps: rows are handed over as they are made, and summed at the end.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::comm {

/// Made by Group::reduce_scatter_chunked. Between that and `finish`, other collectives of the group may be
/// called, the same ones on all ranks.
class ChunkedReduceScatter {
 public:
  virtual ~ChunkedReduceScatter() = default;
  /// The rank whose rows are to be made `i`-th, 0 <= i < size.
  virtual int nth(int i) const = 0;
  /// Collective: the rows of nth(i) are written, and will not be again. Once for every i, ascending.
  virtual void made(int i) = 0;
  /// Collective: this rank's rows of the sum over the ranks, in rank order, into `out` [split.range(rank),
  /// ...] (contiguous). Errors: base::CommError.
  virtual void finish(at::Tensor& out) = 0;
};

}  // namespace shardwise::comm
