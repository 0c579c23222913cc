// Lists the weights of a model directory and each rank's shards of them, from config.json and the headers
// alone.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/config/config.h"
#include "shardwise/io/dtype.h"

namespace shardwise::checkpoint {

struct InspectedTensor {
  std::string name;  // in the file
  io::Dtype dtype;
  std::vector<int64_t> shape;
  std::string rule;                               // "vocab, dim 0"; "whole on every rank"; "not read"
  std::vector<std::vector<int64_t>> rank_shapes;  // empty for a tensor that is not read
};

struct Inspection {
  config::Config config;
  int64_t parameters;  // counts a tied lm_head once
  std::vector<InspectedTensor> tensors;
  int64_t bytes = 0;                // of the full weights
  std::vector<int64_t> rank_bytes;  // of each rank's shards, in the file's dtype
  int64_t bytes_read = 0;           // headers and index
};

/// Inspects a model directory for `tp` ranks. Errors: c10::ValueError naming file and tensor if the weights
/// do not match the directory's config, or if there are more ranks than query heads.
Inspection inspect(const std::filesystem::path& directory, int tp);

}  // namespace shardwise::checkpoint
