// Which tensors a config stands for, whole: ours by name, and as a family's files keep them. No memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/model/config.h"

namespace shardwise::model {

/// One parameter of the unsharded model. A fused projection's first dim is the concatenation of `segments`.
struct WholeTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<int64_t> segments;  // their sizes along dim 0; empty: one
  Holds holds = Holds::numbers;

  int64_t numel() const;
};

/// Every parameter once, in the order of DecoderWeights::roles (a tied head is the embedding).
std::vector<WholeTensor> whole_tensors(const Config& config);

/// The same as the files of the config's family keep them: split or fused, transposed, packed, under its
/// names.
std::vector<WholeTensor> stored_whole_tensors(const Config& config);

}  // namespace shardwise::model
