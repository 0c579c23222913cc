#include "shardwise/model/names.h"

#include <utility>

namespace shardwise::model {

using base::ShardRule;

namespace {

/// A projection that we hold as one product and the file as several.
struct Fused {
  std::string layer;
  std::vector<std::string> parts;  // one a segment, in their order
};

const std::vector<Fused>& fused_layers() {
  static const std::vector<Fused> layers = {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
                                            {"gate_up_proj", {"gate_proj", "up_proj"}}};
  return layers;
}

/// The name of one segment: `model.layers.0.mlp.gate_up_proj.weight`, 1 →
/// `model.layers.0.mlp.up_proj.weight`.
std::string segment_name(const parallel::Parameter& parameter, size_t segment) {
  for (const auto& [layer, parts] : fused_layers()) {
    const size_t place = parameter.name.find("." + layer + ".");
    if (place == std::string::npos) continue;
    TORCH_INTERNAL_ASSERT(parameter.rule.segments.size() == parts.size(), parameter.name, " has ",
                          parameter.rule.segments.size(), " segments");
    return std::string(parameter.name).replace(place + 1, layer.size(), parts[segment]);
  }
  TORCH_INTERNAL_ASSERT(parameter.rule.segments.size() == 1, parameter.name, " has ",
                        parameter.rule.segments.size(), " segments and no names for them");
  return parameter.name;
}

}  // namespace

std::vector<StoredTensor> stored_tensors(const parallel::Parameter& parameter) {
  const ShardRule& rule = parameter.rule;
  if (rule.is_replicated()) return {{parameter.name, parameter.global_shape, /*dim=*/0, rule, /*segment=*/0}};
  std::vector<StoredTensor> tensors;
  for (size_t segment = 0; segment < rule.segments.size(); ++segment) {
    std::vector<int64_t> shape = parameter.global_shape;
    shape.at(rule.dim) = rule.segments[segment].size();
    tensors.push_back({segment_name(parameter, segment), std::move(shape), rule.dim, rule, segment});
  }
  return tensors;
}

ShardRule::Piece StoredTensor::held(int rank) const {
  if (rule.is_replicated()) return {0, 0, shape.at(0)};
  ShardRule::Piece piece = rule.pieces(rank)[segment];
  piece.global_begin = rule.segments[segment].range(rank).begin;
  return piece;
}

ShardRule::Piece StoredTensor::owned(int rank) const {
  if (rule.is_replicated()) return {0, 0, rank == 0 ? shape.at(0) : 0};
  ShardRule::Piece piece = rule.owned_pieces(rank)[segment];
  piece.global_begin = rule.segments[segment].owned(rank).begin;
  return piece;
}

}  // namespace shardwise::model
