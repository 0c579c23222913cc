// config.json <-> Config. Types and spellings are checked here, ranges in validate.
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/model/config.h"

namespace shardwise::model {
namespace {

using base::Fields, base::shown;
using nlohmann::json;

constexpr int64_t kMostConfigBytes = int64_t{1} << 20;

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

void parse_positions(const Fields& fields, Config& config) {
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

void parse_dtype(const Fields& fields, Config& config) {
  fields.or_text("torch_dtype", config.dtype);
  std::string newer = config.dtype;
  fields.or_text("dtype", newer);
  TORCH_CHECK_VALUE(!fields.find("torch_dtype") || newer == config.dtype, fields.label("dtype"),
                    " must be the same as torch_dtype; got ", newer, " and ", config.dtype);
  config.dtype = newer;
}

void parse_tokens(const Fields& fields, Config& config) {
  // Left out and null differ here: a Llama has these two unless it says that it has none.
  if (!fields.is_null("bos_token_id")) config.bos_token_id = 1;
  if (const json* id = fields.find("bos_token_id"))
    config.bos_token_id = fields.to_integer(*id, "bos_token_id");
  if (!fields.is_null("eos_token_id")) config.eos_token_id = {2};
  const json* ids = fields.find("eos_token_id");
  if (!ids) return;
  config.eos_token_id.clear();
  for (const json& id : ids->is_array() ? *ids : json::array({*ids})) {
    config.eos_token_id.push_back(fields.to_integer(id, "eos_token_id"));
  }
}

void parse_heads(const Fields& fields, Config& config) {
  config.num_attention_heads = fields.integer("num_attention_heads");
  config.num_key_value_heads = config.num_attention_heads;
  fields.or_integer("num_key_value_heads", config.num_key_value_heads);
  if (fields.find("head_dim")) {
    config.head_dim = fields.integer("head_dim");
    return;
  }
  TORCH_CHECK_VALUE(config.num_attention_heads > 0, fields.label("num_attention_heads"),
                    " must be at least 1; got ", config.num_attention_heads);
  TORCH_CHECK_VALUE(config.hidden_size % config.num_attention_heads == 0, fields.label("hidden_size"),
                    " must be a multiple of num_attention_heads where head_dim is not given; got ",
                    config.hidden_size, " and ", config.num_attention_heads);
  config.head_dim = config.hidden_size / config.num_attention_heads;
}

Config from_fields(const Fields& fields) {
  Config c;
  c.model_type = fields.text("model_type");
  TORCH_CHECK_VALUE(c.model_type == "llama", fields.label("model_type"), " must be llama; got ",
                    c.model_type);
  TORCH_CHECK_VALUE(!fields.find("quantization_config"), fields.label("quantization_config"),
                    " must be left out, for quantised weights are not read; got ",
                    shown(*fields.find("quantization_config")));
  c.vocab_size = fields.integer("vocab_size");
  c.hidden_size = fields.integer("hidden_size");
  c.intermediate_size = fields.integer("intermediate_size");
  c.num_hidden_layers = fields.integer("num_hidden_layers");
  c.max_position_embeddings = fields.integer("max_position_embeddings");
  c.rms_norm_eps = fields.number("rms_norm_eps");
  fields.or_number("initializer_range", c.initializer_range);
  fields.or_text("hidden_act", c.hidden_act);
  fields.or_flag("tie_word_embeddings", c.tie_word_embeddings);
  fields.or_flag("attention_bias", c.attention_bias);
  fields.or_flag("mlp_bias", c.mlp_bias);
  parse_heads(fields, c);
  parse_positions(fields, c);
  parse_dtype(fields, c);
  parse_tokens(fields, c);
  return c;
}

using Written = nlohmann::ordered_json;

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

Written eos_json(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? Written(ids[0]) : Written(ids);
}

}  // namespace

Config parse_config(const std::string& json_text, const std::string& where) {
  const json parsed = base::parse_json(json_text, where);
  const Config config = from_fields({parsed, where + ": "});
  validate(config, where);
  return config;
}

Config load_config(const std::string& path) {
  const std::string file = base::is_folder(path) ? path + "/config.json" : path;
  return parse_config(base::read_text(file, kMostConfigBytes), file);
}

std::string to_json(const Config& c) {
  Written out;
  out["architectures"] = {"LlamaForCausalLM"};
  out["model_type"] = c.model_type;
  out["vocab_size"] = c.vocab_size;
  out["hidden_size"] = c.hidden_size;
  out["intermediate_size"] = c.intermediate_size;
  out["num_hidden_layers"] = c.num_hidden_layers;
  out["num_attention_heads"] = c.num_attention_heads;
  out["num_key_value_heads"] = c.num_key_value_heads;
  out["head_dim"] = c.head_dim;
  out["max_position_embeddings"] = c.max_position_embeddings;
  out["hidden_act"] = c.hidden_act;
  out["rms_norm_eps"] = c.rms_norm_eps;
  out["initializer_range"] = c.initializer_range;
  out["tie_word_embeddings"] = c.tie_word_embeddings;
  out["attention_bias"] = c.attention_bias;
  out["mlp_bias"] = c.mlp_bias;
  out["bos_token_id"] = c.bos_token_id ? Written(*c.bos_token_id) : Written(nullptr);
  out["eos_token_id"] = eos_json(c.eos_token_id);
  // Both spellings: transformers before 5 reads the first of each pair, 5 the second (and the first where
  // both are).
  out["rope_theta"] = c.rope_theta;
  out["rope_scaling"] = rope_scaling_json(c);
  out["rope_parameters"] = rope_parameters_json(c);
  out["torch_dtype"] = c.dtype;
  out["dtype"] = c.dtype;
  return out.dump(/*indent=*/2) + "\n";
}

}  // namespace shardwise::model
