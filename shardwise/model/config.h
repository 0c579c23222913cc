// The configuration of a model of any family: the sizes and options that the layers are built from.
//
// Fields have Hugging Face's names. family_<name>.cpp maps them to the family's config.json; the table in
// config_parameters lists the parameters that follow from them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/model/config_quantization.h"

namespace shardwise::model {

/// Llama 3's scaling of the rotary frequencies (rope_type "llama3").
/// Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters.
struct RopeScaling {
  double factor = 0;
  double low_freq_factor = 0;
  double high_freq_factor = 0;
  int64_t original_max_position_embeddings = 0;
  bool operator==(const RopeScaling&) const = default;
};

enum class Norm { rms, layer };            // RMSNorm; LayerNorm with a bias
enum class Positions { rotary, learned };  // RoPE; a position embedding, added to the token embedding
/// silu(gate)·up of two projections; or gelu of one projection, by its tanh approximation or exactly.
enum class Activation { silu_gated, gelu_tanh, gelu };

/// Bounds num_hidden_layers, because some families list their layers and a config.json may be malicious.
inline constexpr int64_t kMaxLayers = 10'000;

/// The configuration of a decoder-only Transformer. A size of 0 is unset.
struct Config {
  std::string model_type = "llama";  // the family: selects the file format and does not affect the layers
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  Norm norm = Norm::rms;
  double norm_eps = 1e-6;
  Activation activation = Activation::silu_gated;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // an RMSNorm over each head of the queries and keys, before RoPE
  Positions positions = Positions::rotary;
  double rope_theta = 10000;
  double partial_rotary_factor = 1;  // fraction of head_dim that RoPE rotates, from the first element on
  std::optional<RopeScaling> rope_scaling;
  std::optional<int64_t> sliding_window;     // keys that a query attends to, its own included; nullopt: all
  std::vector<bool> sliding_layers;          // which layers have the window; empty: all
  std::string dtype = "float32";             // of the stored weights: float32, bfloat16 or float16
  std::optional<int64_t> bos_token_id;       // nullopt: null in config.json
  std::vector<int64_t> eos_token_id;         // each of these ends a sequence; empty: null in config.json
  std::optional<Quantization> quantization;  // nullopt: no weight is quantized
  bool operator==(const Config&) const = default;

  bool is_gated() const { return activation == Activation::silu_gated; }
  /// Returns the number of rotated elements per head. In a valid config with rotary positions it is even and
  /// from 2 to head_dim.
  int64_t rotary_dim() const { return static_cast<int64_t>(head_dim * partial_rotary_factor); }
  /// Returns the sliding window of a layer, or nullopt if its queries attend to all earlier positions.
  std::optional<int64_t> window_of(int64_t layer) const;
};

/// Parses and validates a config.json; `where` names it in errors (a path).
/// Accepts the fields of transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters,
/// dtype). Errors: c10::ValueError naming field, value and rule.
Config parse_config(const std::string& json_text, const std::string& where);

/// Loads a config.json, or the config.json of a directory. Errors: those of parse_config; base::FileError.
Config load_config(const std::string& path);

/// Returns a config.json that transformers 4 and 5 and parse_config read back as `config`: it contains the
/// fields of both versions. Errors: c10::ValueError for a config that the family's config.json cannot
/// express.
std::string to_json(const Config& config);

/// Returns `json_text`, a valid config.json, with a quantization_config added and all other fields unchanged.
std::string with_quantization(const std::string& json_text, const Quantization& quantization);

/// Checks a config. Errors: c10::ValueError naming the first field that is missing, out of range or
/// inconsistent with another.
void validate(const Config& config, const std::string& where = "config");

/// Returns a named config: tiny and small (byte-level, for demos), and published ones of every family.
/// Errors: c10::ValueError listing the names.
Config preset(const std::string& name);
std::vector<std::string> preset_names();

/// Returns the number of parameters of the full model; a tied lm_head counts once.
int64_t parameter_count(const Config& config);

/// Returns the rotary frequencies in radians per position, one for each pair of rotated elements, including
/// Llama 3's scaling; empty for learned positions.
std::vector<double> inverse_frequencies(const Config& config);

}  // namespace shardwise::model
