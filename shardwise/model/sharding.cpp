#include "shardwise/model/sharding.h"

#include <fmt/ranges.h>

#include "shardwise/config/tensors.h"
#include "shardwise/model/layout.h"

namespace shardwise::model {

using base::ShardRule;

namespace {

/// Returns the rule of a parameter by its name.
ShardRule rule_of(const std::string& name, const Layout& layout, int64_t head_dim) {
  const auto& [heads, kv_heads, ffn, vocab] = layout;
  const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (is("embed_tokens") || is("lm_head")) return ShardRule::sharded(/*dim=*/0, vocab);
  if (is(".qkv_proj")) return {/*dim=*/0, {{heads, head_dim}, {kv_heads, head_dim}, {kv_heads, head_dim}}};
  if (is(".gate_up_proj")) return {/*dim=*/0, {{ffn}, {ffn}}};
  if (is(".up_proj")) return ShardRule::sharded(/*dim=*/0, ffn);
  if (name.ends_with(".o_proj.weight")) return ShardRule::sharded(/*dim=*/1, heads, head_dim);
  if (name.ends_with(".down_proj.weight")) return ShardRule::sharded(/*dim=*/1, ffn);
  return ShardRule::replicated();
}

}  // namespace

std::vector<parallel::Parameter> sharded_parameters(const Config& config, int tp) {
  const Layout layout = make_layout(config, tp);
  std::vector<parallel::Parameter> parameters;
  for (const FullTensor& tensor : full_tensors(config)) {
    parameters.push_back(
        {tensor.name, tensor.shape, rule_of(tensor.name, layout, config.head_dim), {}, {}, {}});
  }
  return parameters;
}

std::vector<StoredTensor> stored_tensors(const Config& config, int tp) {
  std::vector<StoredTensor> tensors;
  for (const parallel::Parameter& parameter : sharded_parameters(config, tp)) {
    for (StoredTensor& stored : stored_tensors(parameter, config)) tensors.push_back(std::move(stored));
  }
  return tensors;
}

std::string rule_text(const StoredTensor& stored) {
  if (stored.rule.is_replicated()) return "whole on every rank";
  std::vector<std::string> splits;
  for (size_t i = 0; i < stored.segments; ++i) {
    splits.push_back(stored.rule.segments[stored.first_segment + i].split.name());
  }
  return fmt::format("{}, dim {}", fmt::join(splits, " | "), stored.dim);
}

}  // namespace shardwise::model
