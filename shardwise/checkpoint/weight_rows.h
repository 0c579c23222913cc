// A rank's slice of a weight, some rows at a time, however the files keep it: split, fused, transposed, whole
// or cut for another tp size.
#pragma once
#include <vector>

#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/model/names.h"

namespace shardwise::checkpoint {

/// What the files keep of one parameter [out, in] (or one that stands for blocks of them).
class WeightRows {
 public:
  /// `files` and what `stored` names are of one config. Errors: c10::ValueError unless the tensors are there,
  /// of their shapes and types.
  WeightRows(const WeightFiles& files, const std::vector<model::StoredTensor>& stored,
             const model::Config& config, int rank);

  /// Rows [rows.begin, rows.end) of the slice, `width` columns of it, as `dtype`. Cost: one read a run of
  /// what the file keeps together. Errors: those of reading.
  at::Tensor read(const base::Range& rows, int64_t width, at::ScalarType dtype) const;

 private:
  /// A run of the slice along the dim that is cut.
  struct Part {
    Source source;
    bool cuts_rows, is_transposed;
  };
  static void read_part(const Part& part, const base::Range& rows, at::Tensor& target);

  std::vector<Part> parts_;
};

/// [0, rows) in runs that are at most `most_bytes` when a row is `row_bytes`, or single rows.
std::vector<base::Range> row_blocks(int64_t rows, int64_t row_bytes, int64_t most_bytes);

}  // namespace shardwise::checkpoint
