// An all_gather along dim 0 that is under way: rows can be read as they arrive.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::comm {

/// Made by Group::all_gather_chunked.
class ChunkedAllGather {
 public:
  virtual ~ChunkedAllGather() = default;
  /// [split.size(), ...]; the rows of a rank may be read once they have been waited for.
  virtual const at::Tensor& whole() const = 0;
  /// Until the rows of `rank` are there. Errors: base::CommError, or the backend's own.
  virtual void await(int rank) = 0;
};

}  // namespace shardwise::comm
