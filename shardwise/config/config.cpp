#include "shardwise/config/config.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "shardwise/base/log.h"
#include "shardwise/config/family.h"

namespace shardwise::config {
namespace {

/// Throws `where: field must be rule; got value`, with the field's name in the family's config.json.
class Rules {
 public:
  Rules(const Config& config, const std::string& where)
      : family_(family_of(config.model_type, where)), where_(where) {}

  template <typename... Values>
  void require(bool is_met, const char* field, const char* rule, const Values&... got) const {
    TORCH_CHECK_VALUE(is_met, where_, ": ", family_.field_name(field), " must be ", rule, "; got ", got...,
                      " [SW0175]");
  }

  void size(const char* field, int64_t value) const {
    require(value >= 1 && value <= std::numeric_limits<int32_t>::max(), field, "from 1 to 2147483647", value);
  }
  /// Requires `above` < value <= `max`.
  void within(const char* field, double value, double above, double max, const char* rule) const {
    require(value > above && value <= max, field, rule, value);
  }

 private:
  const Family& family_;
  const std::string& where_;
};

constexpr double kHuge = std::numeric_limits<double>::max();

void check_sizes(const Config& c, const Rules& rules) {
  rules.size("vocab_size", c.vocab_size);
  rules.size("hidden_size", c.hidden_size);
  rules.size("intermediate_size", c.intermediate_size);
  rules.require(c.num_hidden_layers >= 1 && c.num_hidden_layers <= kMaxLayers, "num_hidden_layers",
                "from 1 to 10000", c.num_hidden_layers);
  rules.size("num_attention_heads", c.num_attention_heads);
  rules.size("num_key_value_heads", c.num_key_value_heads);
  rules.size("head_dim", c.head_dim);
  rules.size("max_position_embeddings", c.max_position_embeddings);
  rules.require(c.num_attention_heads % c.num_key_value_heads == 0, "num_key_value_heads",
                "a divisor of num_attention_heads", c.num_key_value_heads, " for ", c.num_attention_heads);
  if (c.positions == Positions::learned) return;
  rules.require(c.head_dim % 2 == 0, "head_dim", "even for rotary positions", c.head_dim);
  rules.within("partial_rotary_factor", c.partial_rotary_factor, 0, 1, "above 0 and at most 1");
  rules.require(c.rotary_dim() >= 2 && c.rotary_dim() % 2 == 0, "partial_rotary_factor",
                "such that the rotated part of head_dim is even and at least 2", c.partial_rotary_factor,
                " for ", c.head_dim);
}

void check_experts(const Experts& e, const Config& c, const Rules& rules) {
  rules.size("num_experts", e.count);
  rules.require(e.per_token >= 1 && e.per_token <= e.count, "num_experts_per_tok",
                "from 1 to the number of experts", e.per_token, " of ", e.count);
  rules.size("moe_intermediate_size", e.intermediate_size);
  rules.require(e.shared_size >= 0 && e.shared_size <= std::numeric_limits<int32_t>::max(),
                "n_shared_experts", "such that their features are from 0 to 2147483647", e.shared_size);
  rules.require(e.first_dense_layers >= 0 && e.first_dense_layers <= c.num_hidden_layers,
                "first_k_dense_replace", "from 0 to num_hidden_layers", e.first_dense_layers);
}

void check_latent_attention(const LatentAttention& a, const Rules& rules) {
  rules.size("q_lora_rank", a.q_lora_rank);
  rules.size("kv_lora_rank", a.kv_lora_rank);
  rules.size("qk_rope_head_dim", a.qk_rope_head_dim);
  rules.size("qk_nope_head_dim", a.qk_nope_head_dim);
  rules.size("v_head_dim", a.v_head_dim);
}

void check_window(const Config& c, const Rules& rules) {
  if (c.sliding_window) rules.size("sliding_window", *c.sliding_window);
  const auto types = static_cast<int64_t>(c.sliding_layers.size());
  rules.require(types == 0 || (c.sliding_window && types == c.num_hidden_layers), "layer_types",
                "one type per layer, and only with a sliding_window", types, " types for ",
                c.num_hidden_layers, " layers");
}

void check_rope_scaling(const RopeScaling& s, const Rules& rules) {
  rules.require(s.factor >= 1 && s.factor <= kHuge, "rope_scaling.factor", "at least 1", s.factor);
  rules.within("rope_scaling.low_freq_factor", s.low_freq_factor, 0, kHuge, "above 0");
  rules.require(s.high_freq_factor > s.low_freq_factor && s.high_freq_factor <= kHuge,
                "rope_scaling.high_freq_factor", "above low_freq_factor", s.high_freq_factor, " and ",
                s.low_freq_factor);
  rules.require(s.original_max_position_embeddings >= 1, "rope_scaling.original_max_position_embeddings",
                "at least 1", s.original_max_position_embeddings);
}

void check_numbers(const Config& c, const Rules& rules) {
  rules.within("norm_eps", c.norm_eps, 0, 1, "above 0 and at most 1");
  rules.within("initializer_range", c.initializer_range, 0, 1, "above 0 and at most 1");
  rules.within("rope_theta", c.rope_theta, 0, kHuge, "above 0");
  if (c.rope_scaling) check_rope_scaling(*c.rope_scaling, rules);
  const bool is_known =
      c.dtype == "float64" || c.dtype == "float32" || c.dtype == "bfloat16" || c.dtype == "float16";
  rules.require(is_known, "dtype", "float64, float32, bfloat16 or float16", c.dtype);
}

/// Checks the total in floating point: each size fits in 31 bits, but their products may not fit in 63.
void check_total(const Config& c, const std::string& where) {
  const double h = c.hidden_size, heads = double(c.num_attention_heads) * c.head_dim;
  const double layer =
      h * (4 * heads + 3.0 * c.intermediate_size + 8) + 4 * heads + 4.0 * c.intermediate_size;
  const double positions = c.positions == Positions::learned ? h * c.max_position_embeddings : 0;
  const double experts = c.experts ? 3.0 * h * c.experts->count * c.experts->intermediate_size : 0;
  const double most = 2 * h * c.vocab_size + positions + (layer + experts) * c.num_hidden_layers;
  TORCH_CHECK_VALUE(most < 1e18, where, ": must describe fewer than 1e18 parameters; got about ", most,
                    " [SW0198]");
}

double scaled(double frequency, const RopeScaling& s) {
  // Divides low frequencies by factor, keeps high ones and interpolates between, by their turns over the
  // original context.
  const double turns = s.original_max_position_embeddings * frequency / (2 * std::numbers::pi);
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

}  // namespace

void validate(const Config& config, const std::string& where) {
  const Rules rules(config, where);
  check_sizes(config, rules);
  check_window(config, rules);
  check_numbers(config, rules);
  if (config.experts) check_experts(*config.experts, config, rules);
  if (config.latent_attention) check_latent_attention(*config.latent_attention, rules);
  check_total(config, where);
  check_quantization(config, where);
}

void warn_of_unknown_tokens(const Config& config, const std::string& command) {
  const auto is_unknown = [&](int64_t id) { return id < 0 || id >= config.vocab_size; };
  const auto warn = [&](const char* field, const std::vector<int64_t>& ids) {
    const auto first = std::ranges::find_if(ids, is_unknown);
    if (first == ids.end()) return;
    const auto count = std::ranges::count_if(ids, is_unknown);
    const std::string more = count == 1 ? "" : fmt::format(", the first of {} such ids", count);
    base::log_warning(fmt::format(
        "{}: {} in config.json should be from 0 to below vocab_size, {}; got {}{}; no token has it [SW0196]",
        command, field, config.vocab_size, *first, more));
  };
  if (config.bos_token_id) warn("bos_token_id", {*config.bos_token_id});
  warn("eos_token_id", config.eos_token_id);
}

std::optional<int64_t> Config::window_of(int64_t layer) const {
  const bool has_window = sliding_layers.empty() || sliding_layers.at(layer);
  return has_window ? sliding_window : std::nullopt;
}

std::vector<double> inverse_frequencies(const Config& config) {
  std::vector<double> frequencies;
  if (config.positions == Positions::learned) return frequencies;
  const int64_t rotary_dim = config.rotary_dim();
  for (int64_t i = 0; i < rotary_dim; i += 2) {
    const double frequency = std::pow(config.rope_theta, -double(i) / double(rotary_dim));
    frequencies.push_back(config.rope_scaling ? scaled(frequency, *config.rope_scaling) : frequency);
  }
  return frequencies;
}

}  // namespace shardwise::config
