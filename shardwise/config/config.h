// The configuration of a model of any family: the sizes and options that the layers are built from.
//
// Fields have Hugging Face's names. family_<name>.cpp maps them to the family's config.json; the table in
// parameters.h lists the parameters that follow from them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/config/quantization.h"

namespace shardwise::config {

/// Llama 3's scaling of the rotary frequencies (rope_type "llama3").
/// Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters.
struct RopeScaling {
  double factor = 0;                             // divides the low frequencies
  double low_freq_factor = 0;                    // longer waves than original length / this are scaled
  double high_freq_factor = 0;                   // shorter waves than original length / this are not
  int64_t original_max_position_embeddings = 0;  // the original length, in tokens
  bool operator==(const RopeScaling&) const = default;
};

/// The norms of a model: RMSNorm, or LayerNorm with a bias.
enum class Norm { rms, layer };
/// How positions enter a model: RoPE, or a position embedding that is added to the token embedding.
enum class Positions { rotary, learned };
/// silu(gate)·up of two projections; or gelu of one projection, by its tanh approximation or exactly.
enum class Activation { silu_gated, gelu_tanh, gelu };

/// The routed experts of a mixture of experts: in most blocks each token passes through some of many MLPs.
/// Source: Fedus et al. 2021 (arXiv 2101.03961); shared experts: Dai et al. 2024 (arXiv 2401.06066).
struct Experts {
  int64_t count = 0;               // of a block
  int64_t per_token = 0;           // that a token passes through
  int64_t intermediate_size = 0;   // features inside an expert
  int64_t shared_size = 0;         // features inside the MLP that all tokens pass through as well; 0: none
  int64_t first_dense_layers = 0;  // blocks at the beginning that have an MLP instead
  bool has_score_bias = false;     // one value per expert that only their choice depends on
  bool operator==(const Experts&) const = default;
};

/// Multi-head latent attention: queries, keys and values are projected from short vectors, of which the cache
/// keeps that of the keys and values. Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
struct LatentAttention {
  int64_t q_lora_rank = 0;       // features of the queries' vector
  int64_t kv_lora_rank = 0;      // of the keys' and values'
  int64_t qk_rope_head_dim = 0;  // features of a head that RoPE rotates; those of the keys are of all heads
  int64_t qk_nope_head_dim = 0;  // features of a head that RoPE leaves
  int64_t v_head_dim = 0;        // features of a head's value
  bool operator==(const LatentAttention&) const = default;

  /// Features of a token that the cache keeps.
  int64_t cached_features() const { return kv_lora_rank + qk_rope_head_dim; }
};

/// Bounds num_hidden_layers, because some families list their layers and a config.json may be malicious.
inline constexpr int64_t kMaxLayers = 10'000;

/// The configuration of a decoder-only Transformer. A size of 0 is unset.
struct Config {
  std::string model_type = "llama";     // the family: selects the file format and does not affect the layers
  int64_t vocab_size = 0;               // tokens
  int64_t hidden_size = 0;              // features of the residual stream
  int64_t intermediate_size = 0;        // features inside the MLP
  int64_t num_hidden_layers = 0;        // blocks
  int64_t num_attention_heads = 0;      // query heads
  int64_t num_key_value_heads = 0;      // divides num_attention_heads
  int64_t head_dim = 0;                 // features of a head
  int64_t max_position_embeddings = 0;  // tokens of the longest sequence
  Norm norm = Norm::rms;                // of the blocks and at the end
  double norm_eps = 1e-6;               // added to the mean square or the variance
  Activation activation = Activation::silu_gated;  // of the MLP
  double initializer_range = 0.02;                 // standard deviation of the initial weights
  bool tie_word_embeddings = false;                // the output head is the embedding
  bool qkv_bias = false;                           // of the q, k and v projections
  bool attention_out_bias = false;                 // of the projection after attention
  bool mlp_bias = false;                           // of both projections of the MLP
  bool qk_norm = false;                     // an RMSNorm over each head of the queries and keys, before RoPE
  Positions positions = Positions::rotary;  // rotary or learned
  double rope_theta = 10000;                // base of the rotary frequencies
  double partial_rotary_factor = 1;  // fraction of head_dim that RoPE rotates, from the first element on
  std::optional<RopeScaling> rope_scaling;  // nullopt: none
  std::optional<int64_t> sliding_window;    // keys that a query attends to, its own included; nullopt: all
  std::vector<bool> sliding_layers;         // which layers have the window; empty: all
  std::string dtype = "float32";            // of the stored weights: float64, float32, bfloat16, float16
  std::optional<int64_t> bos_token_id;      // nullopt: null in config.json
  /// Each of these ends a sequence; empty: null in config.json. Ids outside the vocabulary are kept, as
  /// transformers does; the model never produces them.
  std::vector<int64_t> eos_token_id;
  std::optional<Quantization> quantization;  // nullopt: no weight is quantized
  std::optional<Experts> experts;            // nullopt: every block has one MLP
  /// nullopt: queries, keys and values are projected from the residual stream. Otherwise head_dim is that of
  /// queries and keys.
  std::optional<LatentAttention> latent_attention;
  bool operator==(const Config&) const = default;

  /// Returns true if the MLP has a gate beside its up projection.
  bool is_gated() const { return activation == Activation::silu_gated; }
  /// Returns the number of rotated elements per head. In a valid config with rotary positions it is even and
  /// from 2 to head_dim.
  int64_t rotary_dim() const { return static_cast<int64_t>(head_dim * partial_rotary_factor); }
  /// Returns whether the MLP of a layer is a mixture of experts.
  bool has_experts(int64_t layer) const { return experts && layer >= experts->first_dense_layers; }
  /// Returns the features inside the MLP of a layer that all its tokens pass through; 0: it has none.
  int64_t mlp_size(int64_t layer) const {
    return has_experts(layer) ? experts->shared_size : intermediate_size;
  }
  /// Returns the sliding window of a layer, or nullopt if its queries attend to all earlier positions.
  std::optional<int64_t> window_of(int64_t layer) const;
};

/// Returns whether the library has no layers for the model, so that only plans can be made for it.
inline bool can_only_be_planned(const Config& config) {
  return config.experts || config.latent_attention;
}

/// Parses and validates a config.json; `where` names it in errors (a path).
/// Accepts the fields of transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters,
/// dtype). Errors: c10::ValueError naming field, value and rule.
Config parse_config(const std::string& json_text, const std::string& where);

/// Loads a config.json, or the config.json of a directory. Errors: those of parse_config; base::FileError.
Config load_config(const std::string& path);
/// As load_config, but also of models that can only be planned: mixtures of experts and latent attention.
Config load_config_to_plan(const std::string& path);

/// Returns a config.json that transformers 4 and 5 and parse_config read back as `config`: it contains the
/// fields of both versions. Errors: c10::ValueError for a config that the family's config.json cannot
/// express.
std::string to_json(const Config& config);

/// Returns `json_text`, a valid config.json, with a quantization_config added and all other fields unchanged.
std::string with_quantization(const std::string& json_text, const Quantization& quantization);

/// Checks a config. Errors: c10::ValueError naming the first field that is missing, out of range or
/// inconsistent with another.
void validate(const Config& config, const std::string& where = "config");

/// Logs a warning, beginning with `command`, if bos_token_id is outside the vocabulary, and one if ids of
/// eos_token_id are.
void warn_of_unknown_tokens(const Config& config, const std::string& command);

/// Returns a named config: tiny and small (byte-level, for demos), and published ones of every family.
/// Errors: c10::ValueError listing the names.
Config preset(const std::string& name);
/// Returns the names that `preset` knows.
std::vector<std::string> preset_names();
/// As `preset`, but also of models that can only be planned.
Config preset_to_plan(const std::string& name);
/// Returns the names that `preset_to_plan` knows.
std::vector<std::string> preset_names_to_plan();

/// Returns the number of parameters of the full model; a tied lm_head counts once.
int64_t parameter_count(const Config& config);
/// Returns the bytes of an element of `config.dtype`.
int64_t element_bytes(const Config& config);
/// Returns the number of parameters that a token passes through: of all experts only those chosen for it.
int64_t active_parameter_count(const Config& config);

/// Returns the rotary frequencies in radians per position, one for each pair of rotated elements, including
/// Llama 3's scaling; empty for learned positions.
std::vector<double> inverse_frequencies(const Config& config);

}  // namespace shardwise::config
