#include "shardwise/plan/part.h"

#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/operation_time.h"
#include "shardwise/plan/operations.h"
#include "shardwise/plan/parameters.h"

namespace shardwise::plan {
namespace {

constexpr int kFullestRank = 0;
constexpr int64_t kInnerLayer = 1;  // neither the first nor the last: its stage has blocks alone

/// Returns the workload of a stage of one block, between two others.
Workload one_block(const PartWorkload& part) {
  Workload workload = part.workload;
  workload.config = with_blocks(workload.config, 3);
  workload.stage = base::Range{kInnerLayer, kInnerLayer + 1};
  workload.validate();
  return workload;
}

Operations operations_of(const PartWorkload& part, const Workload& block) {
  return part.part == Part::mlp ? mlp_operations(block, kFullestRank, kInnerLayer)
                                : block_operations(block, kFullestRank, kInnerLayer, CountedKeys::visible);
}

Collectives collectives_of(const PartWorkload& part, const Workload& block) {
  const Passes passes = part.part == Part::mlp ? mlp_communication(block, kFullestRank, kInnerLayer)
                                               : block_communication(block, kFullestRank, kInnerLayer);
  return part.passes == PassesOf::forward ? passes.forward : passes.both();
}

int64_t weights_of(const PartWorkload& part, const Workload& block) {
  int64_t elements = 0;
  for (const LocalParameter& parameter : local_parameters(block, kFullestRank)) {
    const bool is_of_mlp = parameter.name.find(".mlp.") != std::string::npos;
    if (part.part == Part::block || is_of_mlp) elements += parameter.elements;
  }
  return elements;
}

}  // namespace

config::Config with_blocks(config::Config config, int64_t blocks) {
  config.sliding_window = config.window_of(0);
  config.sliding_layers.clear();
  config.num_hidden_layers = blocks;
  return config;
}

config::Config mlp_config(const MlpShape& shape, int64_t ranks) {
  config::Config c;
  c.vocab_size = ranks;
  c.hidden_size = shape.hidden;
  c.intermediate_size = shape.ffn;
  c.num_hidden_layers = 1;
  c.num_attention_heads = c.num_key_value_heads = ranks;
  c.head_dim = 2;
  c.max_position_embeddings = 1;
  c.activation = shape.is_gated ? config::Activation::silu_gated : config::Activation::gelu_tanh;
  c.tie_word_embeddings = true;
  return c;
}

PartCosts part_costs(const PartWorkload& part) {
  const Workload block = one_block(part);
  PartCosts costs;
  for (const Operation& one : operations_of(part, block)) {
    costs.flop += one.forward.flop;
    if (part.passes == PassesOf::forward_and_backward)
      costs.flop += one.input_gradient.flop + one.weight_gradient.flop;
  }
  costs.collectives = collectives_of(part, block);
  costs.weight_elements = weights_of(part, block);
  return costs;
}

PartTime part_time(const PartWorkload& part, const Machine& machine) {
  const Workload block = one_block(part);
  const OperationTime time(machine, block.element_bytes);
  PartTime seconds;
  for (const Operation& one : operations_of(part, block)) {
    seconds.compute += time.forward(one);
    if (part.passes == PassesOf::forward_and_backward) seconds.compute += time.backward(one);
  }
  seconds.communication = CollectiveTime(machine, {.ranks = block.tp}).of(collectives_of(part, block));
  return seconds;
}

double communication_ratio(const PartCosts& costs, double flop_per_second, double bytes_per_second) {
  const auto bytes = static_cast<double>(costs.collectives.total().bytes);
  return bytes / bytes_per_second / (costs.flop / flop_per_second);
}

}  // namespace shardwise::plan
