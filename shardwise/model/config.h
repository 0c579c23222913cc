// What a model is: Hugging Face's config.json, field for field, and the figures that follow from it alone.
//
// Names are Hugging Face's so that the file maps one to one. Which tensors a model has and how they are cut
// is model/decoder's; reading and writing the JSON is config_json.cpp's, the named shapes are
// config_preset.cpp's.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardwise::model {

/// Llama 3's stretching of the rotary frequencies (rope_type "llama3").
/// Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters.
struct RopeScaling {
  double factor = 0;
  double low_freq_factor = 0;
  double high_freq_factor = 0;
  int64_t original_max_position_embeddings = 0;
  bool operator==(const RopeScaling&) const = default;
};

/// A Llama-shaped model. Sizes are 0 until given; the other defaults are those of transformers' LlamaConfig,
/// which a field that is left out of config.json has.
struct Config {
  std::string model_type = "llama";
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  std::string hidden_act = "silu";
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  std::string dtype = "float32";        // of the weights as stored: float32, bfloat16 or float16
  std::optional<int64_t> bos_token_id;  // null in the file: none
  std::vector<int64_t> eos_token_id;    // any of these ends a text; empty: none
  bool operator==(const Config&) const = default;
};

/// The config of `json_text`, validated; `where` names the text in errors (a path).
/// Takes the older spelling (rope_theta, rope_scaling, torch_dtype) and the newer one (rope_parameters,
/// dtype). Errors: c10::ValueError naming field, value and rule.
Config parse_config(const std::string& json_text, const std::string& where);

/// The config of a config.json, or of the folder that holds one.
Config load_config(const std::string& path);

/// A config.json that transformers 4 and 5 and parse_config read back as `config`: both spellings are in it.
std::string to_json(const Config& config);

/// Errors: c10::ValueError naming the first field that is missing, out of range or at odds with another.
void validate(const Config& config, const std::string& where = "config");

/// A named shape: tiny and small (bytes, for demos), llama-2-7b, llama-3.2-1b, llama-3-8b as published.
/// Errors: c10::ValueError listing the names.
Config preset(const std::string& name);
std::vector<std::string> preset_names();

/// Trained numbers of the whole model; a tied head counts once.
int64_t parameter_count(const Config& config);

/// The head_dim / 2 rotary frequencies in radians per position, Llama 3's scaling included.
std::vector<double> inverse_frequencies(const Config& config);

}  // namespace shardwise::model
