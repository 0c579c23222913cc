// Reads blocks of rows of a rank's shard of a weight from any file format: split, fused, transposed,
// unsharded or sharded for another tp size.
#pragma once
#include <vector>

#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/model/names.h"

namespace shardwise::checkpoint {

/// A range of a rank's shard of a weight, along the sharded dim, in a file.
struct WeightPart {
  std::string name;  // in the file
  TensorSource source;
  bool shards_rows, is_transposed;
};

/// Finds the parts of a rank's shard of the tensors `stored`, which belong to the same config as `files`.
/// Errors: c10::ValueError unless they exist with their shapes and dtypes.
std::vector<WeightPart> weight_parts(const WeightFiles& files, const std::vector<model::StoredTensor>& stored,
                                     const config::Config& config, int rank);

/// Reads one parameter [out, in] (or a packed one [out blocks, in blocks]).
class WeightRowReader {
 public:
  /// Errors: those of weight_parts.
  WeightRowReader(const WeightFiles& files, const std::vector<model::StoredTensor>& stored,
                  const config::Config& config, int rank)
      : parts_(weight_parts(files, stored, config, rank)) {}

  /// Reads rows [rows.begin, rows.end) of the shard, with `width` columns, as `dtype`. Cost: one read per
  /// contiguous range of the file. Errors: c10::ValueError if a file cannot be read.
  at::Tensor read(const base::Range& rows, int64_t width, at::ScalarType dtype) const;
  /// Like read. Adds NaN or Inf to `errors`, naming file and tensor.
  at::Tensor read_finite(const base::Range& rows, int64_t width, at::ScalarType dtype,
                         ValidationErrors& errors) const;

 private:
  /// Returns the block of `target` that the part filled; undefined if it has none of the rows.
  static at::Tensor read_part(const WeightPart& part, const base::Range& rows, const at::Tensor& target);

  std::vector<WeightPart> parts_;
};

}  // namespace shardwise::checkpoint
