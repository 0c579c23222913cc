// Rows of a bf16 weight [out, in] that are read where they are in mapped files.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "shardwise/base/mapped_file.h"

namespace shardwise::quant {

/// A shard's rows in files, each with all columns of the shard.
struct MappedRows {
  std::vector<const uint8_t*> rows;                            // the first byte of each row, at any alignment
  std::vector<std::shared_ptr<const base::MappedFile>> files;  // that contain them
};

}  // namespace shardwise::quant
