// What the costs of a block depend on, so that blocks that are alike are planned once.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// Blocks of the same kind have equal costs.
struct BlockKind {
  std::optional<int64_t> window;      // of attention
  bool has_experts = false;           // instead of one MLP, or beside it
  bool has_input_gradient = true;     // a parameter before the block is trained
  std::set<std::string> frozen = {};  // parameters, by their names within the block
  /// Orders by all members. (Not all standard libraries compare an optional by <=>.)
  bool operator<(const BlockKind& other) const {
    return std::tie(window, has_experts, has_input_gradient, frozen) <
           std::tie(other.window, other.has_experts, other.has_input_gradient, other.frozen);
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

/// Returns the workload with a model of three blocks like a block of the kind of `layer`: the first is on the
/// embedding's stage, the last on the head's, and the one between on neither. `block` selects one: 0, 1 or 2.
/// What is frozen holds for the selected block; those before it are trained if its input has a gradient.
Workload one_of_three_blocks(Workload workload, int64_t layer, const BlockKind& kind, int64_t block);

}  // namespace shardwise::plan
