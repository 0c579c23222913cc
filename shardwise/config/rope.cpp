// Rotary positions in config.json: the fields of transformers 4 (rope_theta, rope_scaling) and of 5
// (rope_parameters).
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "shardwise/config/fields.h"

namespace shardwise::config {

using base::Fields, base::shown;
using nlohmann::json;

namespace {

/// The RoPE fields of one version.
struct Rope {
  std::optional<double> theta, partial_rotary_factor;
  std::optional<RopeScaling> scaling;
};

RopeScaling parse_llama3_scaling(const Fields& fields) {
  return {.factor = fields.number("factor"),
          .low_freq_factor = fields.number("low_freq_factor"),
          .high_freq_factor = fields.number("high_freq_factor"),
          .original_max_position_embeddings = fields.integer("original_max_position_embeddings")};
}

std::optional<double> number_if_given(const Fields& fields, const char* name) {
  return fields.find(name) ? std::optional(fields.number(name)) : std::nullopt;
}

Rope parse_rope(const Fields& fields) {
  Rope rope{number_if_given(fields, "rope_theta"), number_if_given(fields, "partial_rotary_factor"), {}};
  std::string type = "default";
  fields.or_text("type", type);  // the oldest name of the field
  fields.or_text("rope_type", type);
  TORCH_CHECK_VALUE(type == "default" || type == "llama3", fields.label("rope_type"),
                    " must be default or llama3; got ", type, " [SW0188]");
  if (type == "llama3") rope.scaling = parse_llama3_scaling(fields);
  return rope;
}

/// Sets `value` to `other`, if given. Errors: c10::ValueError if both are given and differ.
void merge(std::optional<double>& value, const std::optional<double>& other, const std::string& label) {
  if (!other) return;
  TORCH_CHECK_VALUE(!value || *value == *other, label, " must be the same wherever it is given; got ", *value,
                    " and ", *other, " [SW0186]");
  value = other;
}

OrderedJson rope_scaling_json(const Config& config) {
  if (!config.rope_scaling) return nullptr;
  const RopeScaling& s = *config.rope_scaling;
  return {{"rope_type", "llama3"},
          {"factor", s.factor},
          {"low_freq_factor", s.low_freq_factor},
          {"high_freq_factor", s.high_freq_factor},
          {"original_max_position_embeddings", s.original_max_position_embeddings}};
}

OrderedJson rope_parameters_json(const Config& config) {
  OrderedJson parameters = rope_scaling_json(config);
  if (parameters.is_null()) parameters = {{"rope_type", "default"}};
  parameters["rope_theta"] = config.rope_theta;
  if (config.partial_rotary_factor != 1) parameters["partial_rotary_factor"] = config.partial_rotary_factor;
  return parameters;
}

}  // namespace

void read_rope(const Fields& fields, Config& config) {
  std::optional<double> theta = number_if_given(fields, "rope_theta");
  std::optional<double> factor = number_if_given(fields, "partial_rotary_factor");
  std::optional<Rope> older, newer;
  if (const json* object = fields.find("rope_scaling"))
    older = parse_rope({*object, fields.label("rope_scaling.")});
  if (const json* object = fields.find("rope_parameters")) {
    newer = parse_rope({*object, fields.label("rope_parameters.")});
  }
  TORCH_CHECK_VALUE(!older || !newer || older->scaling == newer->scaling, fields.label("rope_scaling"),
                    " must match rope_parameters; got ", shown(*fields.find("rope_scaling")), " and ",
                    shown(*fields.find("rope_parameters")), " [SW0187]");
  for (const auto* rope : {&older, &newer}) {
    if (!*rope) continue;
    merge(theta, (*rope)->theta, fields.label("rope_theta"));
    merge(factor, (*rope)->partial_rotary_factor, fields.label("partial_rotary_factor"));
    config.rope_scaling = (*rope)->scaling;
  }
  if (theta) config.rope_theta = *theta;
  if (factor) config.partial_rotary_factor = *factor;
}

void check_full_rotation(const Fields& fields, const Config& config) {
  TORCH_CHECK_VALUE(config.partial_rotary_factor == 1, fields.label("partial_rotary_factor"),
                    " must be 1 for model_type ", config.model_type, "; got ", config.partial_rotary_factor,
                    " [SW0180]");
}

void write_rope(const Config& config, OrderedJson& out) {
  out["rope_theta"] = config.rope_theta;
  if (config.partial_rotary_factor != 1) out["partial_rotary_factor"] = config.partial_rotary_factor;
  out["rope_scaling"] = rope_scaling_json(config);
  out["rope_parameters"] = rope_parameters_json(config);
}

}  // namespace shardwise::config
