#include "shardwise/model/config.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <numbers>

namespace shardwise::model {
namespace {

/// Says `where: field must be rule; got value` unless `is_met`.
template <typename... Values>
void require(bool is_met, const std::string& where, const char* field, const char* rule,
             const Values&... got) {
  TORCH_CHECK_VALUE(is_met, where, ": ", field, " must be ", rule, "; got ", got...);
}

void check_names(const Config& c, const std::string& where) {
  require(c.model_type == "llama", where, "model_type", "llama", c.model_type);
  require(c.hidden_act == "silu", where, "hidden_act", "silu", c.hidden_act);
  const bool is_known = c.dtype == "float32" || c.dtype == "bfloat16" || c.dtype == "float16";
  require(is_known, where, "dtype", "float32, bfloat16 or float16", c.dtype);
}

void check_sizes(const Config& c, const std::string& where) {
  const auto positive = [&](const char* field, int64_t value) {
    require(value >= 1 && value <= std::numeric_limits<int32_t>::max(), where, field, "from 1 to 2147483647",
            value);
  };
  positive("vocab_size", c.vocab_size);
  positive("hidden_size", c.hidden_size);
  positive("intermediate_size", c.intermediate_size);
  positive("num_hidden_layers", c.num_hidden_layers);
  positive("num_attention_heads", c.num_attention_heads);
  positive("num_key_value_heads", c.num_key_value_heads);
  positive("head_dim", c.head_dim);
  positive("max_position_embeddings", c.max_position_embeddings);
  require(c.num_attention_heads % c.num_key_value_heads == 0, where, "num_key_value_heads",
          "a divisor of num_attention_heads", c.num_key_value_heads, " for ", c.num_attention_heads);
  require(c.head_dim % 2 == 0, where, "head_dim", "even, for rotary positions turn pairs", c.head_dim);
}

void check_numbers(const Config& c, const std::string& where) {
  const auto within = [](double value, double above, double most) { return value > above && value <= most; };
  const double huge = std::numeric_limits<double>::max();
  require(within(c.rms_norm_eps, 0, 1), where, "rms_norm_eps", "above 0 and at most 1", c.rms_norm_eps);
  require(within(c.initializer_range, 0, 1), where, "initializer_range", "above 0 and at most 1",
          c.initializer_range);
  require(within(c.rope_theta, 0, huge), where, "rope_theta", "above 0", c.rope_theta);
  if (!c.rope_scaling) return;
  const RopeScaling& s = *c.rope_scaling;
  require(s.factor >= 1 && s.factor <= huge, where, "rope_scaling.factor", "at least 1", s.factor);
  require(within(s.low_freq_factor, 0, huge), where, "rope_scaling.low_freq_factor", "above 0",
          s.low_freq_factor);
  require(within(s.high_freq_factor, s.low_freq_factor, huge), where, "rope_scaling.high_freq_factor",
          "above low_freq_factor", s.high_freq_factor, " and ", s.low_freq_factor);
  require(s.original_max_position_embeddings >= 1, where, "rope_scaling.original_max_position_embeddings",
          "at least 1", s.original_max_position_embeddings);
}

void check_tokens(const Config& c, const std::string& where) {
  const auto is_token = [&](int64_t id) { return id >= 0 && id < c.vocab_size; };
  if (c.bos_token_id) {
    require(is_token(*c.bos_token_id), where, "bos_token_id", "from 0 to below vocab_size", *c.bos_token_id,
            " for ", c.vocab_size);
  }
  for (const int64_t id : c.eos_token_id) {
    require(is_token(id), where, "eos_token_id", "from 0 to below vocab_size", id, " for ", c.vocab_size);
  }
}

int64_t layer_parameter_count(const Config& c) {
  const int64_t queries = c.num_attention_heads * c.head_dim, keys = c.num_key_value_heads * c.head_dim;
  const int64_t norms = 2 * c.hidden_size;
  const int64_t attention = c.hidden_size * (2 * queries + 2 * keys);
  const int64_t mlp = 3 * c.hidden_size * c.intermediate_size;
  const int64_t attention_bias = c.attention_bias ? queries + 2 * keys + c.hidden_size : 0;
  const int64_t mlp_bias = c.mlp_bias ? 2 * c.intermediate_size + c.hidden_size : 0;
  return norms + attention + attention_bias + mlp + mlp_bias;
}

/// The sizes above all fit 31 bits; their products need not fit 63.
void check_total(const Config& c, const std::string& where) {
  const double h = c.hidden_size, heads = double(c.num_attention_heads) * c.head_dim;
  const double layer =
      h * (4 * heads + 3.0 * c.intermediate_size + 8) + 4 * heads + 4.0 * c.intermediate_size;
  const double most = 2 * h * c.vocab_size + layer * c.num_hidden_layers;
  TORCH_CHECK_VALUE(most < 1e18, where, ": must describe fewer than 1e18 parameters; got about ", most);
}

double scaled(double frequency, const RopeScaling& s) {
  // Long waves are stretched by factor, short ones kept, those between are blended by their turns over the
  // context.
  const double turns = s.original_max_position_embeddings * frequency / (2 * std::numbers::pi);
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - kept) * frequency / s.factor + kept * frequency;
}

}  // namespace

void validate(const Config& config, const std::string& where) {
  check_names(config, where);
  check_sizes(config, where);
  check_numbers(config, where);
  check_tokens(config, where);
  check_total(config, where);
}

int64_t parameter_count(const Config& config) {
  const int64_t embedding = config.vocab_size * config.hidden_size;
  const int64_t head = config.tie_word_embeddings ? 0 : embedding;
  return embedding + config.num_hidden_layers * layer_parameter_count(config) + config.hidden_size + head;
}

std::vector<double> inverse_frequencies(const Config& config) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < config.head_dim; i += 2) {
    const double frequency = std::pow(config.rope_theta, -double(i) / double(config.head_dim));
    frequencies.push_back(config.rope_scaling ? scaled(frequency, *config.rope_scaling) : frequency);
  }
  return frequencies;
}

}  // namespace shardwise::model
