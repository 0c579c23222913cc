#include "shardwise/plan/sharded_tensors.h"

#include "shardwise/config/parameters.h"

namespace shardwise::plan {
namespace {

using Ranges = std::vector<std::vector<base::Range>>;

/// The ranges of a parameter that each rank holds.
Ranges ranges_of(const base::ShardRule& rule, int ranks) {
  Ranges ranges;
  if (rule.is_replicated()) return ranges;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<base::Range>& held = ranges.emplace_back();
    for (const auto& [begin, local, size] : rule.pieces(rank)) held.push_back({begin, begin + size});
  }
  return ranges;
}

/// The features of fused parts that each rank holds, one part after another.
base::ShardRule features(std::vector<base::Segment> segments) {
  return {/*dim=*/2, std::move(segments)};
}

}  // namespace

std::vector<ShardedTensor> sharded_tensors(const Workload& workload) {
  workload.validate();
  const config::Config& c = workload.config;
  const config::Layout layout = workload.layout();
  std::vector<ShardedTensor> tensors;
  for (const config::ParameterInfo& parameter : config::ParameterTable(c, layout)) {
    if (parameter.block.value_or(0) != 0) continue;
    std::string name = config::module_name(parameter.name);
    if (parameter.name.ends_with(".bias")) name += ".bias";
    tensors.push_back({name, parameter.shape, /*is_weight=*/true, parameter.rule.dim,
                       ranges_of(parameter.rule, workload.tp)});
  }
  const auto add = [&](const char* name, int64_t width, const base::ShardRule& rule) {
    tensors.push_back({name,
                       {workload.sequence_length, workload.batch_size, width},
                       /*is_weight=*/false,
                       rule.dim,
                       ranges_of(rule, workload.tp)});
  };
  const int64_t d = c.head_dim;
  const bool has_sp = workload.parallelism == Parallelism::tp_sp && workload.tp > 1;
  add("residual stream", c.hidden_size,
      has_sp ? base::ShardRule::sharded(/*dim=*/0, workload.sequence()) : base::ShardRule::replicated());
  add("q|k|v", (c.num_attention_heads + 2 * c.num_key_value_heads) * d,
      features({{layout.heads, d}, {layout.kv_heads, d}, {layout.kv_heads, d}}));
  add("attention output", c.num_attention_heads * d, features({{layout.heads, d}}));
  add("down_proj input", c.intermediate_size, features({{layout.ffn}}));
  add("logits", c.vocab_size, features({{layout.vocab}}));
  return tensors;
}

}  // namespace shardwise::plan
