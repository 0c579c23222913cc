// What a directory's weights are and what each of t ranks would hold of them, by config.json and the headers
// alone.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/io/dtype.h"
#include "shardwise/model/config.h"

namespace shardwise::checkpoint {

struct InspectedTensor {
  std::string name;  // as the file has it
  io::Dtype dtype;
  std::vector<int64_t> shape;
  std::string rule;                               // "vocab, dim 0"; "whole on every rank"; "not read"
  std::vector<std::vector<int64_t>> rank_shapes;  // none of a tensor that is not read
};

struct Inspection {
  model::Config config;
  int64_t parameters;  // a tied head counts once
  std::vector<InspectedTensor> tensors;
  int64_t bytes = 0;                // of the weights, whole
  std::vector<int64_t> rank_bytes;  // of each rank's slices, as stored
  int64_t bytes_read = 0;           // to find all this
};

/// Errors: c10::ValueError naming file and tensor when these are not the weights of the directory's config,
/// or there are more ranks than query heads.
Inspection inspect(const std::filesystem::path& directory, int tp);

}  // namespace shardwise::checkpoint
