// Maps the bf16 weights of a model directory, to be multiplied where they are in the files.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "shardwise/base/mapped_file.h"
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/parallel/parameter.h"

namespace shardwise::checkpoint {

/// Maps each file once.
class RowMapper {
 public:
  /// Gives weight.panels, of bf16, the rows of the weight in the files of `stored` (quant::MappedRows), and
  /// checks them for NaN and infinity, which it adds to `errors`. Returns false, and does nothing, if a row
  /// of this rank's shard is not in one piece in the files, in bf16: transposed, in another dtype, or cut for
  /// another tp size. Cost: one pass over the rows.
  bool map(const WeightFiles& files, const parallel::Parameter& weight, const config::Config& stored,
           int rank, ValidationErrors& errors);

  /// Returns the bytes of the rows that were mapped.
  int64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  std::shared_ptr<const base::MappedFile> file(const std::string& path);

  std::map<std::string, std::shared_ptr<const base::MappedFile>> files_;
  int64_t mapped_bytes_ = 0;
};

}  // namespace shardwise::checkpoint
