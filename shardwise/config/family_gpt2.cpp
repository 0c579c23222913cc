// GPT-2: LayerNorm, learned positions, biases everywhere, and weights that are stored transposed (Conv1D).
// Presets: the config.json of openai-community/gpt2, and GPT-3. The run sets the dropout rates; those in the
// file have no effect.
#include "shardwise/config/family.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "shardwise/config/fields.h"

namespace shardwise::config {
namespace {

using base::Fields;

Config gpt2_defaults() {
  Config c;
  c.model_type = "gpt2";
  c.norm = Norm::layer;
  c.positions = Positions::learned;
  c.activation = Activation::gelu_tanh;
  c.qkv_bias = c.attention_out_bias = c.mlp_bias = true;
  c.tie_word_embeddings = true;
  c.norm_eps = 1e-5;
  c.bos_token_id = 50256;
  c.eos_token_id = {50256};
  return c;
}

/// Reads a size by its name in GPT-2 or by the name that transformers accepts in every family.
int64_t size_of(const Fields& fields, const char* gpt2_name, const char* general_name) {
  if (!fields.find(general_name)) return fields.integer(gpt2_name);
  const int64_t size = fields.integer(general_name);
  TORCH_CHECK_VALUE(!fields.find(gpt2_name) || fields.integer(gpt2_name) == size, fields.label(gpt2_name),
                    " must be the same as ", general_name, "; got ", fields.integer(gpt2_name), " and ", size,
                    " [SW0185]");
  return size;
}

Activation read_activation(const Fields& fields) {
  std::string name = "gelu_new";
  fields.or_text("activation_function", name);
  TORCH_CHECK_VALUE(name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu",
                    fields.label("activation_function"), " must be gelu_new, gelu_pytorch_tanh or gelu; got ",
                    name, " [SW0182]");
  return name == "gelu" ? Activation::gelu : Activation::gelu_tanh;
}

/// Rejects variants of attention that few models use. (reorder_and_upcast_attn only affects rounding.)
void check_flag(const Fields& fields, const char* name, bool supported) {
  bool value = supported;
  fields.or_flag(name, value);
  TORCH_CHECK_VALUE(value == supported, fields.label(name), " must be ", supported ? "true" : "false",
                    "; got ", value ? "true" : "false", " [SW0176]");
}

Config read_gpt2(const Fields& fields) {
  Config c = gpt2_defaults();
  c.vocab_size = fields.integer("vocab_size");
  c.hidden_size = size_of(fields, "n_embd", "hidden_size");
  c.num_hidden_layers = size_of(fields, "n_layer", "num_hidden_layers");
  c.num_attention_heads = size_of(fields, "n_head", "num_attention_heads");
  c.num_key_value_heads = c.num_attention_heads;
  c.max_position_embeddings = size_of(fields, "n_positions", "max_position_embeddings");
  // Clamps an invalid size, which `validate` rejects, so that the product cannot overflow.
  c.intermediate_size = 4 * std::clamp<int64_t>(c.hidden_size, 0, std::numeric_limits<int32_t>::max());
  fields.or_integer("n_inner", c.intermediate_size);
  c.head_dim = head_dim_of(fields, c);
  fields.or_number("layer_norm_epsilon", c.norm_eps);
  fields.or_number("initializer_range", c.initializer_range);
  fields.or_flag("tie_word_embeddings", c.tie_word_embeddings);
  c.activation = read_activation(fields);
  check_flag(fields, "scale_attn_weights", true);
  check_flag(fields, "scale_attn_by_inverse_layer_idx", false);
  check_flag(fields, "add_cross_attention", false);
  read_dtype(fields, c);
  read_tokens(fields, c);
  return c;
}

void write_gpt2(const Config& c, OrderedJson& out) {
  out["vocab_size"] = c.vocab_size;
  out["n_positions"] = c.max_position_embeddings;
  out["n_embd"] = c.hidden_size;
  out["n_layer"] = c.num_hidden_layers;
  out["n_head"] = c.num_attention_heads;
  out["n_inner"] = c.intermediate_size;
  out["activation_function"] = c.activation == Activation::gelu ? "gelu" : "gelu_new";
  out["layer_norm_epsilon"] = c.norm_eps;
  out["initializer_range"] = c.initializer_range;
  out["tie_word_embeddings"] = c.tie_word_embeddings;
  write_tokens(c, out);
  write_dtype(c, out);
}

Config gpt2() {
  Config c = gpt2_defaults();
  c.vocab_size = 50257;
  c.hidden_size = 768;
  c.intermediate_size = 3072;
  c.num_hidden_layers = 12;
  c.num_attention_heads = 12;
  c.num_key_value_heads = 12;
  c.head_dim = 64;
  c.max_position_embeddings = 1024;
  return c;
}

/// GPT-3 175B (Brown et al. 2020, table 2.1) with the blocks of GPT-2: its sparse attention is dense here.
Config gpt3_175b() {
  Config c = gpt2();
  c.hidden_size = 12288;
  c.intermediate_size = 4 * c.hidden_size;
  c.num_hidden_layers = 96;
  c.num_attention_heads = c.num_key_value_heads = 96;
  c.head_dim = 128;
  c.max_position_embeddings = 2048;
  return c;
}

std::vector<StoredModule> modules() {
  const std::string layer = "model.layers.*.", stored = "transformer.h.*.";
  const auto projection = [&](const char* name, const char* stored_name) {
    return StoredModule{layer + name, {stored + stored_name}, /*is_transposed=*/true};
  };
  return {{"model.embed_tokens", {"transformer.wte"}},
          {"model.embed_positions", {"transformer.wpe"}},
          {layer + "input_layernorm", {stored + "ln_1"}},
          projection("self_attn.qkv_proj", "attn.c_attn"),
          projection("self_attn.o_proj", "attn.c_proj"),
          {layer + "post_attention_layernorm", {stored + "ln_2"}},
          projection("mlp.up_proj", "mlp.c_fc"),
          projection("mlp.down_proj", "mlp.c_proj"),
          {"model.norm", {"transformer.ln_f"}}};
}

}  // namespace

Family gpt2_family() {
  return {.model_type = "gpt2",
          .architecture = "GPT2LMHeadModel",
          .read = read_gpt2,
          .write = write_gpt2,
          .field_names = {{"hidden_size", "n_embd"},
                          {"num_hidden_layers", "n_layer"},
                          {"num_attention_heads", "n_head"},
                          {"intermediate_size", "n_inner"},
                          {"max_position_embeddings", "n_positions"},
                          {"norm_eps", "layer_norm_epsilon"}},
          .modules = modules(),
          .optional_prefix = "transformer.",
          .redundant_suffixes = {".attn.bias", ".attn.masked_bias"},
          .presets = {{"gpt2", gpt2()}, {"gpt3-175b", gpt3_175b()}}};
}

}  // namespace shardwise::config
