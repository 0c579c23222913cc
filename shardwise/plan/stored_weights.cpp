#include "shardwise/plan/stored_weights.h"

#include <numeric>

#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

using config::ParameterInfo;

constexpr int64_t kGroupScaleBytes = 2;

/// Returns the bytes of a weight [out, in].
int64_t quantized_bytes(const config::Quantization& q, int64_t out, int64_t in) {
  const int64_t groups = out * (q.group_size == 0 ? 1 : parts_of(in, q.group_size));
  const int64_t zero_points = q.is_symmetric ? 0 : parts_of(groups * q.bits, 8);
  return parts_of(out * in * q.bits, 8) + groups * kGroupScaleBytes + zero_points;
}

/// Whether a parameter is of all routed experts of a block, [experts, out, in].
bool has_all_experts(const ParameterInfo& parameter) {
  return parameter.shape.size() == 3;
}

/// Returns the name of the product with a weight, as in operations.h and routed_experts.h.
std::string product_of(const ParameterInfo& parameter) {
  if (has_all_experts(parameter))
    return parameter.name.ends_with("down_proj") ? "experts_down" : "experts_gate_up";
  const std::string module = config::module_name(parameter.name);
  if (module == "kv_a_proj_with_mqa") return "kv_a_proj";
  return module == "gate" ? "router" : module;
}

}  // namespace

StoredWeights::StoredWeights(const config::Config& config, const ExpertRanks& ranks, int64_t element_bytes)
    : config_(config), element_bytes_(element_bytes), blocks_(config.num_hidden_layers) {
  if (config.experts) {
    const RoutedExperts experts = routed_experts(config, ranks, /*rows=*/1);
    held_experts_ = experts.held;
    expert_features_ = experts.features;
  }
  for (const ParameterInfo& parameter :
       config::ParameterTable(config, config::make_layout(config, static_cast<int>(ranks.tp))))
    add(parameter);
}

StoredWeight StoredWeights::stored(const ParameterInfo& parameter, const std::vector<int64_t>& shape) const {
  if (parameter.format != config::StorageFormat::dense) {
    const config::Quantization q = config_.quantization->of(parameter.name);
    return {quantized_bytes(q, shape[0], shape[1]), q.bits};
  }
  const int64_t elements =
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
  return {elements * element_bytes_, 8 * element_bytes_};
}

void StoredWeights::add(const ParameterInfo& parameter) {
  if (has_all_experts(parameter)) {
    const int64_t h = config_.hidden_size, f = expert_features_;
    const bool is_down = product_of(parameter) == "experts_down";
    const std::vector<int64_t> shape = is_down ? std::vector{h, f} : std::vector{2 * f, h};
    return add_to_block(parameter, stored(parameter, shape), held_experts_);
  }
  const StoredWeight weight = stored(parameter, parameter.rule.local_shape(parameter.shape, /*rank=*/0));
  if (parameter.block) return add_to_block(parameter, weight, /*count=*/1);
  const std::string module = config::module_name(parameter.name);
  if (module == "embed_tokens" && config_.tie_word_embeddings) tied_bytes_ = weight.bytes;
  if (module == "lm_head" || (module == "embed_tokens" && config_.tie_word_embeddings)) head_ = weight;
  const bool is_embedding = module == "embed_tokens" || module == "embed_positions";
  (is_embedding ? embedding_bytes_ : head_bytes_) += weight.bytes;
}

void StoredWeights::add_to_block(const ParameterInfo& parameter, const StoredWeight& weight, int64_t count) {
  blocks_[*parameter.block] += count * weight.bytes;
  if (parameter.shape.size() >= 2)
    products_[config_.has_experts(*parameter.block) ? 1 : 0][product_of(parameter)] = weight;
}

int64_t StoredWeights::of_stage(const base::Range& blocks) const {
  const bool is_first = blocks.begin == 0, is_last = blocks.end == config_.num_hidden_layers;
  return of_blocks(blocks) + (is_first ? embedding_bytes_ : 0) + (is_last ? head_bytes_ : 0) +
         (is_last && !is_first ? tied_bytes_ : 0);
}

int64_t StoredWeights::read_by_stage(const base::Range& blocks) const {
  return of_blocks(blocks) + (blocks.end == config_.num_hidden_layers ? head_.bytes : 0);
}

int64_t StoredWeights::of_blocks(const base::Range& blocks) const {
  return std::accumulate(blocks_.begin() + blocks.begin, blocks_.begin() + blocks.end, int64_t{0});
}

}  // namespace shardwise::plan
