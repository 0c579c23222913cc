// What the costs of a block depend on, so that blocks that are alike are planned once.
#pragma once
#include <map>
#include <optional>
#include <tuple>

#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// Blocks of the same kind have equal costs.
struct BlockKind {
  std::optional<int64_t> window;  // of attention
  bool has_experts = false;       // instead of one MLP, or beside it
  /// Orders by window, then by experts. (Not all standard libraries compare an optional by <=>.)
  bool operator<(const BlockKind& other) const {
    return std::tie(window, has_experts) < std::tie(other.window, other.has_experts);
  }
};

/// Returns the kind of a block.
inline BlockKind kind_of(const config::Config& config, int64_t layer) {
  return {config.window_of(layer), config.has_experts(layer)};
}

/// Returns a layer of each kind.
inline std::map<BlockKind, int64_t> layers_of_kinds(const config::Config& config) {
  std::map<BlockKind, int64_t> layers;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layers.try_emplace(kind_of(config, layer), layer);
  return layers;
}

/// Returns the model whose blocks have the MLP that all tokens of `layer` pass through, and no routed
/// experts.
inline config::Config without_experts(config::Config config, int64_t layer) {
  config.intermediate_size = config.mlp_size(layer);
  config.experts.reset();
  return config;
}

/// Returns the workload with a model of three blocks like `layer`: the first is on the embedding's stage, the
/// last on the head's, and the one between on neither. `block` selects one: 0, 1 or 2.
inline Workload one_of_three_blocks(Workload workload, int64_t layer, int64_t block) {
  config::Config& c = workload.config;
  c.sliding_window = c.window_of(layer);
  c.intermediate_size = c.mlp_size(layer);
  if (c.has_experts(layer)) {
    c.experts->first_dense_layers = 0;
  } else {
    c.experts.reset();
    workload.ep = 1;
  }
  c.sliding_layers.clear();
  c.num_hidden_layers = 3;
  workload.stage = base::Range{block, block + 1};
  return workload;
}

}  // namespace shardwise::plan
