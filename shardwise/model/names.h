// From a parameter to the tensors that a Hugging Face checkpoint keeps for it.
#pragma once
#include <string>
#include <vector>

#include "shardwise/parallel/parameter.h"

namespace shardwise::model {

/// A whole tensor on disk: one segment of a fused parameter, or the parameter itself.
struct StoredTensor {
  std::string name;            // model.layers.0.self_attn.q_proj.weight
  std::vector<int64_t> shape;  // of the whole
  int64_t dim;                 // the one that is cut; 0 when nothing is
  /// What one rank holds along `dim`: where in the stored tensor, and where in the parameter's local slice.
  base::ShardRule::Piece held(int rank) const;
  /// The part of `held` that this rank writes: each element has one writer.
  base::ShardRule::Piece owned(int rank) const;

  base::ShardRule rule;  // of the parameter
  size_t segment;        // which of its segments this is
};

/// `model.layers.0.self_attn.qkv_proj.weight` → q_proj, k_proj, v_proj; gate_up_proj → gate_proj, up_proj;
/// any other name → itself.
std::vector<StoredTensor> stored_tensors(const parallel::Parameter& parameter);

}  // namespace shardwise::model
