#include "shardwise/config/fields.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "shardwise/config/family.h"

namespace shardwise::config {

using base::Fields;
using nlohmann::json;

namespace {

void read_heads(const Fields& fields, Config& c) {
  c.num_attention_heads = fields.integer("num_attention_heads");
  if (c.num_key_value_heads == 0 || fields.is_null("num_key_value_heads")) {
    c.num_key_value_heads = c.num_attention_heads;
  }
  fields.or_integer("num_key_value_heads", c.num_key_value_heads);
  if (fields.find("head_dim")) {
    c.head_dim = fields.integer("head_dim");
  } else if (c.head_dim == 0) {
    c.head_dim = head_dim_of(fields, c);
  }
}

void check_silu(const Fields& fields) {
  std::string activation = "silu";
  fields.or_text("hidden_act", activation);
  TORCH_CHECK_VALUE(activation == "silu", fields.label("hidden_act"), " must be silu; got ", activation,
                    " [SW0181]");
}

OrderedJson eos_json(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? OrderedJson(ids[0]) : OrderedJson(ids);
}

}  // namespace

int64_t head_dim_of(const Fields& fields, const Config& c) {
  const Family& family = family_of(c.model_type);
  const std::string hidden = family.field_name("hidden_size"),
                    heads = family.field_name("num_attention_heads");
  TORCH_CHECK_VALUE(c.num_attention_heads > 0, fields.label(heads.c_str()), " must be at least 1; got ",
                    c.num_attention_heads, " [SW0179]");
  TORCH_CHECK_VALUE(c.hidden_size % c.num_attention_heads == 0, fields.label(hidden.c_str()),
                    " must be a multiple of ", heads, " if head_dim is not given; got ", c.hidden_size,
                    " and ", c.num_attention_heads, " [SW0183]");
  return c.hidden_size / c.num_attention_heads;
}

void read_llama_fields(const Fields& fields, Config& c) {
  c.vocab_size = fields.integer("vocab_size");
  c.hidden_size = fields.integer("hidden_size");
  c.intermediate_size = fields.integer("intermediate_size");
  c.num_hidden_layers = fields.integer("num_hidden_layers");
  c.max_position_embeddings = fields.integer("max_position_embeddings");
  c.norm_eps = fields.number("rms_norm_eps");
  fields.or_number("initializer_range", c.initializer_range);
  check_silu(fields);
  fields.or_flag("tie_word_embeddings", c.tie_word_embeddings);
  read_heads(fields, c);
  read_rope(fields, c);
  read_dtype(fields, c);
  read_tokens(fields, c);
}

void write_llama_fields(const Config& c, OrderedJson& out) {
  out["vocab_size"] = c.vocab_size;
  out["hidden_size"] = c.hidden_size;
  out["intermediate_size"] = c.intermediate_size;
  out["num_hidden_layers"] = c.num_hidden_layers;
  out["num_attention_heads"] = c.num_attention_heads;
  out["num_key_value_heads"] = c.num_key_value_heads;
  out["head_dim"] = c.head_dim;
  out["max_position_embeddings"] = c.max_position_embeddings;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = c.norm_eps;
  out["initializer_range"] = c.initializer_range;
  out["tie_word_embeddings"] = c.tie_word_embeddings;
  write_tokens(c, out);
  write_rope(c, out);
  write_dtype(c, out);
}

void read_dtype(const Fields& fields, Config& config) {
  fields.or_text("torch_dtype", config.dtype);
  std::string newer = config.dtype;
  fields.or_text("dtype", newer);
  TORCH_CHECK_VALUE(!fields.find("torch_dtype") || newer == config.dtype, fields.label("dtype"),
                    " must be the same as torch_dtype; got ", newer, " and ", config.dtype, " [SW0184]");
  config.dtype = newer;
}

void write_dtype(const Config& config, OrderedJson& out) {
  out["torch_dtype"] = config.dtype;
  out["dtype"] = config.dtype;
}

void read_tokens(const Fields& fields, Config& config) {
  if (fields.is_null("bos_token_id")) config.bos_token_id.reset();
  if (const json* id = fields.find("bos_token_id"))
    config.bos_token_id = fields.to_integer(*id, "bos_token_id");
  if (fields.is_null("eos_token_id")) config.eos_token_id.clear();
  fields.or_integers("eos_token_id", config.eos_token_id);
}

void write_tokens(const Config& config, OrderedJson& out) {
  out["bos_token_id"] = config.bos_token_id ? OrderedJson(*config.bos_token_id) : OrderedJson(nullptr);
  out["eos_token_id"] = eos_json(config.eos_token_id);
}

}  // namespace shardwise::config
