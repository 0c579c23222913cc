#include "shardwise/plan/one_block_stages.h"

#include "shardwise/config/parameters.h"

namespace shardwise::plan {
namespace {

constexpr int64_t kBlocks = 3;

/// Returns the frozen parameters of three blocks, of which `block` has the kind.
FrozenParameters frozen_of_three(const Workload& three, const BlockKind& kind, int64_t block,
                                 const FrozenParameters& of_model) {
  if (of_model.empty()) return {};
  const std::set<std::string>& of_block = of_model.of_block(kind.frozen_like);
  std::set<std::string> frozen;
  for (const config::ParameterInfo& parameter : config::ParameterTable(three.config)) {
    const std::string& name = parameter.name;
    if (!parameter.block) {
      if (of_model.contains(name)) frozen.insert(name);
    } else if (*parameter.block < block) {
      if (!kind.has_input_gradient) frozen.insert(name);
    } else if (*parameter.block == block) {
      if (of_block.contains(name.substr(prefix_of_block(block).size()))) frozen.insert(name);
    }
  }
  return {three.config, frozen};
}

/// Returns the workload with the model of three blocks, and what is frozen in `workload`'s.
Workload three_blocks(Workload workload, int64_t layer, int64_t block) {
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
  return workload;
}

}  // namespace

Workload one_of_three_blocks(const Workload& workload, int64_t layer, const BlockKind& kind, int64_t block) {
  Workload three = three_blocks(workload, layer, block);
  three.frozen = frozen_of_three(three, kind, block, workload.frozen);
  return three;
}

Workload OneBlockStages::workload(const Workload& model, int64_t layer, const BlockKind& kind,
                                  int64_t block) {
  Workload three = three_blocks(model, layer, block);
  if (model.frozen.empty()) return three;
  const auto [found, is_new] = frozen_.try_emplace({kind, block});
  if (is_new) found->second = frozen_of_three(three, kind, block, model.frozen);
  three.frozen = found->second;
  return three;
}

const ParameterSums& OneBlockStages::sums(const Workload& one, const BlockKind& kind) {
  const Key key{one.tp, one.parallelism, one.ep, one.blocks().begin, kind};
  const auto found = sums_.find(key);
  return found != sums_.end() ? found->second : sums_.emplace(key, parameter_sums(one)).first->second;
}

}  // namespace shardwise::plan
