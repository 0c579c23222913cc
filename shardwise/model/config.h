// What a model is, whichever family it comes from: the sizes and the choices that the layers are built from.
//
// Sizes keep Hugging Face's names. How a family spells them in its config.json is its own file's
// (family_<name>.cpp), which tensors follow from them is config_tensors', how those are cut is
// model/decoder's.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/model/config_quantization.h"

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

enum class Norm { rms, layer };            // RMSNorm; LayerNorm, with a bias
enum class Positions { rotary, learned };  // turned queries and keys; a second embedding, added to the first
/// silu(gate)·up of two products; or of one product gelu, by its tanh formula or exactly.
enum class Activation { silu_gated, gelu_tanh, gelu };

/// Some families list their layers one by one: a file's number of them must not be one to count up to.
inline constexpr int64_t kMostLayers = 10'000;

/// A decoder-only Transformer. Sizes are 0 until given.
struct Config {
  std::string model_type = "llama";  // the family, by which files are read and written; no layer looks at it
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
  bool qk_norm = false;  // an RMSNorm over each head of the queries and of the keys, before the rotation
  Positions positions = Positions::rotary;
  double rope_theta = 10000;
  double partial_rotary_factor = 1;  // share of a head's elements, the first, that are turned
  std::optional<RopeScaling> rope_scaling;
  std::optional<int64_t> sliding_window;     // keys that a query sees, its own position's included; none: all
  std::vector<bool> slides;                  // which layers have that window; empty: all
  std::string dtype = "float32";             // of the weights as stored: float32, bfloat16 or float16
  std::optional<int64_t> bos_token_id;       // null in the file: none
  std::vector<int64_t> eos_token_id;         // any of these ends a text; empty: none
  std::optional<Quantization> quantization;  // none: every weight is an ordinary one
  bool operator==(const Config&) const = default;

  bool is_gated() const { return activation == Activation::silu_gated; }
  /// How many elements of a head are turned: even, from 2 to head_dim, in a valid config with rotary
  /// positions.
  int64_t rotary_dim() const { return static_cast<int64_t>(head_dim * partial_rotary_factor); }
  /// The sliding window of one layer; none: its queries see all that came before.
  std::optional<int64_t> window_of(int64_t layer) const;
};

/// The config of `json_text`, validated; `where` names the text in errors (a path).
/// Takes the older spelling (rope_theta, rope_scaling, torch_dtype) and the newer one (rope_parameters,
/// dtype). Errors: c10::ValueError naming field, value and rule.
Config parse_config(const std::string& json_text, const std::string& where);

/// The config of a config.json, or of the directory that holds one.
Config load_config(const std::string& path);

/// A config.json that transformers 4 and 5 and parse_config read back as `config`: both spellings are in it.
/// Errors: c10::ValueError for a config that its family's config.json has no words for.
std::string to_json(const Config& config);

/// `json_text`, a valid config.json, with a quantization_config added; what else is in it stays.
std::string with_quantization(const std::string& json_text, const Quantization& quantization);

/// Errors: c10::ValueError naming the first field that is missing, out of range or at odds with another.
void validate(const Config& config, const std::string& where = "config");

/// A named shape: tiny and small (bytes, for demos), and one or more published ones of every family.
/// Errors: c10::ValueError listing the names.
Config preset(const std::string& name);
std::vector<std::string> preset_names();

/// Trained numbers of the whole model; a tied head counts once.
int64_t parameter_count(const Config& config);

/// The rotary frequencies, one for two elements that are turned, in radians per position, Llama 3's scaling
/// included; none where positions are learned.
std::vector<double> inverse_frequencies(const Config& config);

}  // namespace shardwise::model
