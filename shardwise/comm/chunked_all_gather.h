// The handle of a chunked all_gather along dim 0: each rank's rows can be read as they arrive.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::comm {

/// An in-flight all_gather that Group::all_gather_chunked started.
class ChunkedAllGather {
 public:
  virtual ~ChunkedAllGather() = default;
  /// Returns the gathered tensor [split.size(), ...]; wait_chunk(r) makes rank r's rows readable.
  virtual const at::Tensor& output() const = 0;
  /// Waits until the rows of `rank` have arrived. Errors: base::CommError, or the backend's.
  virtual void wait_chunk(int rank) = 0;
};

}  // namespace shardwise::comm
