// What the costs of a block depend on, so that blocks that are alike are planned once.
#pragma once
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// Blocks of the same kind have equal costs.
struct BlockKind {
  std::optional<int64_t> window;   // of attention
  bool has_experts = false;        // instead of one MLP, or beside it
  bool has_input_gradient = true;  // a parameter before the block is trained
  int64_t frozen_like = -1;        // the first block in which the same parameters are frozen
  /// Orders by all members. (Not all standard libraries compare an optional by <=>.)
  bool operator<(const BlockKind& other) const {
    return std::tie(window, has_experts, has_input_gradient, frozen_like) <
           std::tie(other.window, other.has_experts, other.has_input_gradient, other.frozen_like);
  }
};

/// Returns the kind of each block of the workload's model.
std::vector<BlockKind> kinds_of_blocks(const Workload& workload);

/// Returns a layer of each kind.
std::map<BlockKind, int64_t> layers_of_kinds(const std::vector<BlockKind>& blocks);

/// Returns the model whose blocks have the MLP that all tokens of `layer` pass through, and no routed
/// experts.
inline config::Config without_experts(config::Config config, int64_t layer) {
  config.intermediate_size = config.mlp_size(layer);
  config.experts.reset();
  return config;
}

}  // namespace shardwise::plan
