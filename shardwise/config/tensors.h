// The full tensors of a config, by parameter name and as stored in the family's files. Allocates no tensors.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/config/config.h"

namespace shardwise::model {

/// One parameter of the unsharded model. A fused projection concatenates `segments` along its first dim.
struct FullTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<int64_t> segments;  // sizes along dim 0; empty: not fused
  ElementType element_type = ElementType::floating_point;

  int64_t numel() const;
};

/// Returns every parameter once, in the order of DecoderWeights::used_parameters (a tied lm_head is the
/// embedding).
std::vector<FullTensor> full_tensors(const Config& config);

/// Returns the tensors that store these parameters in files of the config's family: split or fused,
/// transposed, packed, with the family's names.
std::vector<FullTensor> stored_full_tensors(const Config& config);

}  // namespace shardwise::model
