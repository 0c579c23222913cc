#include "shardwise/plan/block_kind.h"

#include "shardwise/config/parameters.h"

namespace shardwise::plan {
namespace {

constexpr int64_t kBlocks = 3;

/// Returns the frozen parameters of three blocks, of which `block` has the kind.
FrozenParameters frozen_of_three(const Workload& three, const BlockKind& kind, int64_t block,
                                 const FrozenParameters& of_model) {
  if (of_model.empty()) return {};
  std::set<std::string> frozen;
  for (const config::ParameterInfo& parameter : config::ParameterTable(three.config)) {
    const std::string& name = parameter.name;
    if (!parameter.block) {
      if (of_model.contains(name)) frozen.insert(name);
    } else if (*parameter.block < block) {
      if (!kind.has_input_gradient) frozen.insert(name);
    } else if (*parameter.block == block) {
      if (kind.frozen.contains(name.substr(prefix_of_block(block).size()))) frozen.insert(name);
    }
  }
  return {three.config, frozen};
}

}  // namespace

std::vector<BlockKind> kinds_of_blocks(const Workload& workload) {
  const config::Config& config = workload.config;
  std::vector<BlockKind> kinds;
  kinds.reserve(config.num_hidden_layers);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    kinds.push_back({config.window_of(layer), config.has_experts(layer)});
  if (workload.frozen.empty()) return kinds;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    kinds[layer].has_input_gradient = workload.required_by_block(layer).norm1.input;
    kinds[layer].frozen = workload.frozen.of_block(layer);
  }
  return kinds;
}

std::map<BlockKind, int64_t> layers_of_kinds(const std::vector<BlockKind>& blocks) {
  std::map<BlockKind, int64_t> layers;
  for (size_t layer = 0; layer < blocks.size(); ++layer)
    layers.try_emplace(blocks[layer], static_cast<int64_t>(layer));
  return layers;
}

Workload one_of_three_blocks(Workload workload, int64_t layer, const BlockKind& kind, int64_t block) {
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
  c.num_hidden_layers = kBlocks;
  workload.stage = base::Range{block, block + 1};
  workload.frozen = frozen_of_three(workload, kind, block, workload.frozen);
  return workload;
}

}  // namespace shardwise::plan
