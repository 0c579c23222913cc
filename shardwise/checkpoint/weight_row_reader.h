// Reads blocks of rows of a rank's shard of a weight from any file format: split, fused, transposed,
// unsharded or sharded for another tp size.
#pragma once
#include <vector>

#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/model/names.h"

namespace shardwise::checkpoint {

/// Reads one parameter [out, in] (or a packed one [out blocks, in blocks]).
class WeightRowReader {
 public:
  /// Finds the tensors `stored`, which belong to the same config as `files`. Errors: c10::ValueError unless
  /// they exist with their shapes and dtypes.
  WeightRowReader(const WeightFiles& files, const std::vector<model::StoredTensor>& stored,
                  const config::Config& config, int rank);

  /// Reads rows [rows.begin, rows.end) of the shard, with `width` columns, as `dtype`. Cost: one read per
  /// contiguous range of the file. Errors: c10::ValueError if a file cannot be read.
  at::Tensor read(const base::Range& rows, int64_t width, at::ScalarType dtype) const;

 private:
  /// A range of the shard along the sharded dim.
  struct Part {
    TensorSource source;
    bool shards_rows, is_transposed;
  };
  static void read_part(const Part& part, const base::Range& rows, at::Tensor& target);

  std::vector<Part> parts_;
};

}  // namespace shardwise::checkpoint
