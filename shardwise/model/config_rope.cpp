// Rotary positions in config.json: the older spelling (rope_theta, rope_scaling) and the newer one
// (rope_parameters).
#include <c10/util/Exception.h>

#include "shardwise/model/config_fields.h"

namespace shardwise::model {

using base::Fields, base::shown;
using nlohmann::json;

namespace {

/// What one spelling says about rotary positions.
struct Rope {
  std::optional<double> theta;
  std::optional<RopeScaling> scaling;
};

RopeScaling parse_llama3_scaling(const Fields& fields) {
  return {.factor = fields.number("factor"),
          .low_freq_factor = fields.number("low_freq_factor"),
          .high_freq_factor = fields.number("high_freq_factor"),
          .original_max_position_embeddings = fields.integer("original_max_position_embeddings")};
}

void check_all_rotated(const Fields& fields) {
  double share = 1;
  fields.or_number("partial_rotary_factor", share);
  TORCH_CHECK_VALUE(share == 1, fields.label("partial_rotary_factor"), " must be 1; got ", share);
}

Rope parse_rope(const Fields& fields) {
  check_all_rotated(fields);
  Rope rope;
  if (fields.find("rope_theta")) rope.theta = fields.number("rope_theta");
  std::string type = "default";
  fields.or_text("type", type);  // the oldest spelling
  fields.or_text("rope_type", type);
  TORCH_CHECK_VALUE(type == "default" || type == "llama3", fields.label("rope_type"),
                    " must be default or llama3; got ", type);
  if (type == "llama3") rope.scaling = parse_llama3_scaling(fields);
  return rope;
}

/// `theirs` completes `ours`, or says the same.
void merge_theta(std::optional<double>& ours, const std::optional<double>& theirs, const Fields& fields) {
  if (!theirs) return;
  TORCH_CHECK_VALUE(!ours || *ours == *theirs, fields.label("rope_theta"),
                    " must be the same wherever it is given; got ", *ours, " and ", *theirs);
  ours = theirs;
}

Written rope_scaling_json(const Config& config) {
  if (!config.rope_scaling) return nullptr;
  const RopeScaling& s = *config.rope_scaling;
  return {{"rope_type", "llama3"},
          {"factor", s.factor},
          {"low_freq_factor", s.low_freq_factor},
          {"high_freq_factor", s.high_freq_factor},
          {"original_max_position_embeddings", s.original_max_position_embeddings}};
}

Written rope_parameters_json(const Config& config) {
  Written parameters = rope_scaling_json(config);
  if (parameters.is_null()) parameters = {{"rope_type", "default"}};
  parameters["rope_theta"] = config.rope_theta;
  return parameters;
}

}  // namespace

void read_rope(const Fields& fields, Config& config) {
  check_all_rotated(fields);
  std::optional<double> theta;
  if (fields.find("rope_theta")) theta = fields.number("rope_theta");
  std::optional<Rope> older, newer;
  if (const json* object = fields.find("rope_scaling"))
    older = parse_rope({*object, fields.label("rope_scaling.")});
  if (const json* object = fields.find("rope_parameters")) {
    newer = parse_rope({*object, fields.label("rope_parameters.")});
  }
  TORCH_CHECK_VALUE(!older || !newer || older->scaling == newer->scaling, fields.label("rope_scaling"),
                    " must say what rope_parameters says; got ", shown(*fields.find("rope_scaling")), " and ",
                    shown(*fields.find("rope_parameters")));
  for (const auto* rope : {&older, &newer}) {
    if (!*rope) continue;
    merge_theta(theta, (*rope)->theta, fields);
    config.rope_scaling = (*rope)->scaling;
  }
  if (theta) config.rope_theta = *theta;
}

void write_rope(const Config& config, Written& out) {
  out["rope_theta"] = config.rope_theta;
  out["rope_scaling"] = rope_scaling_json(config);
  out["rope_parameters"] = rope_parameters_json(config);
}

}  // namespace shardwise::model
