#include "shardwise/plan/block_kind.h"

namespace shardwise::plan {
std::vector<BlockKind> kinds_of_blocks(const Workload& workload) {
  const config::Config& config = workload.config;
  std::vector<BlockKind> kinds;
  kinds.reserve(config.num_hidden_layers);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    kinds.push_back({config.window_of(layer), config.has_experts(layer)});
  if (workload.frozen.empty()) return kinds;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    kinds[layer].has_input_gradient = workload.required_by_block(layer).norm1.input;
    kinds[layer].frozen_like = workload.frozen.first_like(layer);
  }
  return kinds;
}

std::map<BlockKind, int64_t> layers_of_kinds(const std::vector<BlockKind>& blocks) {
  std::map<BlockKind, int64_t> layers;
  for (size_t layer = 0; layer < blocks.size(); ++layer)
    layers.try_emplace(blocks[layer], static_cast<int64_t>(layer));
  return layers;
}

}  // namespace shardwise::plan
