#include "shardwise/plan/frozen_parameters.h"

#include <c10/util/Exception.h>

#include <map>

namespace shardwise::plan {
namespace {

/// Returns the names within each block of the block's parameters that are in `names`.
std::vector<std::set<std::string>> by_block(const config::ParameterTable& table, int64_t blocks,
                                            const std::set<std::string>& names) {
  std::vector<std::set<std::string>> frozen(blocks);
  for (const config::ParameterInfo& one : table) {
    if (one.block && names.contains(one.name))
      frozen[*one.block].insert(one.name.substr(prefix_of_block(*one.block).size()));
  }
  return frozen;
}

/// Returns for each set the first that equals it.
std::vector<int64_t> first_equal(const std::vector<std::set<std::string>>& sets) {
  std::map<std::set<std::string>, int64_t> first;
  std::vector<int64_t> result;
  for (const std::set<std::string>& one : sets)
    result.push_back(first.try_emplace(one, static_cast<int64_t>(result.size())).first->second);
  return result;
}

}  // namespace

std::string prefix_of_block(int64_t layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

FrozenParameters::FrozenParameters(const config::Config& config, const std::set<std::string>& names) {
  if (names.empty()) return;
  TORCH_CHECK_VALUE(!can_only_be_planned(config),
                    "plan: all parameters of a model that can only be planned must be trained; got ",
                    names.size(), " frozen [SW0812]");
  const config::ParameterTable table(config);
  for (const std::string& name : names)
    TORCH_CHECK_VALUE(table.contains(name), "plan: frozen parameters must be parameters of the model; got ",
                      name, " [SW0459]");
  const std::vector<std::set<std::string>> blocks = by_block(table, config.num_hidden_layers, names);
  of_ = std::make_shared<const OfModel>(OfModel{.config = config,
                                                .names = names,
                                                .parameters = table.size(),
                                                .by_block = blocks,
                                                .first_like = first_equal(blocks),
                                                .required = required_by_model(config, table, names)});
}

void FrozenParameters::validate(const config::Config& config) const {
  if (empty()) return;
  TORCH_CHECK_VALUE(of_->config == config,
                    "plan: frozen parameters must be of the planned model; got those of another [SW0831]");
  TORCH_CHECK_VALUE(!are_all(), "plan: at least one parameter must be trained; got all ", of_->parameters,
                    " parameters frozen [SW0460]");
}

}  // namespace shardwise::plan
