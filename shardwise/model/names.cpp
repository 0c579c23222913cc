#include "shardwise/model/names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "shardwise/config/family.h"

namespace shardwise::model {

using base::ShardRule;
using Pieces = std::vector<ShardRule::Piece>;

namespace {

/// Returns the tensor `name`, which contains `segments` of the parameter's segments from `first` on.
StoredTensor stored_tensor(const config::ParameterInfo& parameter, const std::string& name,
                           bool is_transposed, size_t first, size_t segments) {
  const ShardRule& rule = parameter.rule;
  std::vector<int64_t> shape = parameter.shape;
  if (!rule.is_replicated()) {
    shape.at(rule.dim) = 0;
    for (size_t i = first; i < first + segments; ++i) shape[rule.dim] += rule.segments[i].size();
  }
  if (is_transposed) std::swap(shape.at(0), shape.at(1));
  const int64_t dim = rule.is_replicated() ? 0 : is_transposed ? 1 - rule.dim : rule.dim;
  return {name,  std::move(shape), dim, is_transposed, config::ElementType::floating_point, rule,
          first, segments};
}

/// Returns `rule` in units of blocks of `block` elements.
ShardRule in_blocks(const ShardRule& rule, int64_t dim, int64_t block) {
  ShardRule blocks{dim, block == 1 ? rule.segments : std::vector<base::Segment>()};
  if (block == 1) return blocks;
  for (const auto& [split, unit] : rule.segments) {
    blocks.segments.push_back({base::Split::blocks_of(split.name() + " in blocks", split, unit, block)});
  }
  return blocks;
}

/// Returns the rule of a part [out blocks, in blocks] or [in].
ShardRule packed_rule(const config::ParameterInfo& weight, const config::PackedPart& part,
                      bool needs_all_groups) {
  const ShardRule& rule = weight.rule;
  if (rule.is_replicated()) return rule;
  if (rule.dim == 0)
    return part.out_block == 0 ? ShardRule::replicated() : in_blocks(rule, 0, part.out_block);
  if (needs_all_groups) return ShardRule::replicated();
  // A scale of a full row is one block: a rank without columns has none.
  const int64_t block = part.in_block == 0 ? weight.shape.at(1) : part.in_block;
  return in_blocks(rule, /*dim=*/part.out_block == 0 ? 0 : 1, block);
}

std::vector<StoredTensor> all_parts(const config::ParameterInfo& weight, const config::Config& config) {
  std::vector<StoredTensor> tensors;
  for (const config::PackedPart& part : config::packed_parts(config.quantization->of(weight.name))) {
    for (StoredTensor& stored : stored_tensors(weight, part, config)) tensors.push_back(std::move(stored));
  }
  return tensors;
}

}  // namespace

config::ParameterInfo packed_parameter(const config::ParameterInfo& weight, const config::PackedPart& part,
                                       const config::Config& config) {
  const bool is_per_group = part.leaf == ".qzeros" || part.leaf == ".scales";
  const bool needs_all_groups = is_per_group && config.quantization->desc_act;
  const std::string name = weight.name.substr(0, weight.name.rfind('.')) + part.leaf;
  std::vector<int64_t> shape = part.shape(weight.shape.at(0), weight.shape.at(1));
  std::reverse(shape.begin(), shape.end());
  return {name, std::move(shape), packed_rule(weight, part, needs_all_groups)};
}

std::vector<StoredTensor> stored_tensors(const config::ParameterInfo& weight, const config::PackedPart& part,
                                         const config::Config& config) {
  const config::ParameterInfo packed = packed_parameter(weight, part, config);
  const std::vector<std::string> names =
      config::stored_names(config::family_of(config.model_type), packed.name).names;
  const bool is_matrix = part.out_block != 0;
  std::vector<StoredTensor> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    // Segments are output features: a part without an output dim is the same for each name.
    const bool is_split = names.size() > 1 && is_matrix;
    const size_t first = is_split ? i : 0, segments = is_split ? 1 : packed.rule.segments.size();
    tensors.push_back(stored_tensor(packed, names[i], is_matrix, first, segments));
    tensors.back().element_type = part.element_type;
  }
  return tensors;
}

std::vector<StoredTensor> stored_tensors(const config::ParameterInfo& parameter,
                                         const config::Config& config) {
  if (parameter.format == config::StorageFormat::packed) return all_parts(parameter, config);
  const auto [names, is_transposed] =
      config::stored_names(config::family_of(config.model_type), parameter.name);
  const size_t segments = parameter.rule.segments.size();
  if (names.size() == 1) return {stored_tensor(parameter, names[0], is_transposed, /*first=*/0, segments)};
  TORCH_INTERNAL_ASSERT(names.size() == segments, parameter.name, " has ", segments, " segments");
  std::vector<StoredTensor> tensors;
  for (size_t segment = 0; segment < segments; ++segment) {
    tensors.push_back(stored_tensor(parameter, names[segment], is_transposed, segment, /*segments=*/1));
  }
  return tensors;
}

std::vector<StoredTensor> stored_tensors(const config::Config& config, int tp) {
  std::vector<StoredTensor> tensors;
  for (const config::ParameterInfo& parameter :
       config::ParameterTable(config, config::make_layout(config, tp))) {
    for (StoredTensor& stored : stored_tensors(parameter, config)) tensors.push_back(std::move(stored));
  }
  return tensors;
}

config::ParameterInfo info_of(const parallel::Parameter& parameter, const config::Config& config) {
  const config::StorageFormat format =
      parameter.is_quantized() ? config::quantized_format(config) : config::StorageFormat::dense;
  return {.name = parameter.name,
          .shape = parameter.global_shape,
          .rule = parameter.rule,
          .init = parameter.init,
          .format = format};
}

std::vector<StoredTensor> stored_tensors(const parallel::Parameter& parameter, const config::Config& config) {
  return stored_tensors(info_of(parameter, config), config);
}

at::Tensor StoredTensor::oriented(const at::Tensor& local) const {
  return is_transposed ? local.t() : local;
}

/// Selects the pieces of this tensor's segments; global_begin then counts from its first segment.
Pieces StoredTensor::select_segments(Pieces pieces) const {
  int64_t begin = 0;
  for (size_t i = 0; i < first_segment; ++i) begin += rule.segments[i].size();
  Pieces selected(pieces.begin() + first_segment, pieces.begin() + first_segment + segments);
  for (ShardRule::Piece& piece : selected) piece.global_begin -= begin;
  return selected;
}

Pieces StoredTensor::held(int rank) const {
  if (rule.is_replicated()) return {{0, 0, shape.at(0)}};
  return select_segments(rule.pieces(rank));
}

std::vector<int64_t> StoredTensor::held_shape(int rank) const {
  std::vector<int64_t> local = shape;
  local.at(dim) = 0;
  for (const ShardRule::Piece& piece : held(rank)) local[dim] += piece.size;
  return local;
}

Pieces StoredTensor::owned(int rank) const {
  if (rule.is_replicated()) return {{0, 0, rank == 0 ? shape.at(0) : 0}};
  return select_segments(rule.owned_pieces(rank));
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
