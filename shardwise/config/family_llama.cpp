// Llama 2 and 3, and the names that related families share. Presets: the config.json of
// meta-llama/Llama-2-7b-hf, Llama-3.2-1B and Meta-Llama-3-8B; tiny and small are ours and byte-level.
#include "shardwise/config/family_llama.h"

#include <nlohmann/json.hpp>

#include "shardwise/config/fields.h"

namespace shardwise::config {
namespace {

Config read_llama(const base::Fields& fields) {
  Config c;
  c.bos_token_id = 1;
  c.eos_token_id = {2};
  read_llama_fields(fields, c);
  check_full_rotation(fields, c);
  fields.or_flag("attention_bias", c.qkv_bias);
  c.attention_out_bias = c.qkv_bias;
  fields.or_flag("mlp_bias", c.mlp_bias);
  return c;
}

void write_llama(const Config& c, OrderedJson& out) {
  write_llama_fields(c, out);
  out["attention_bias"] = c.qkv_bias;
  out["mlp_bias"] = c.mlp_bias;
}

Config byte_level(int64_t hidden_size, int64_t intermediate_size, int64_t layers, int64_t positions) {
  Config c;
  c.vocab_size = 256;
  c.hidden_size = hidden_size;
  c.intermediate_size = intermediate_size;
  c.num_hidden_layers = layers;
  c.num_attention_heads = 8;
  c.num_key_value_heads = 4;
  c.head_dim = hidden_size / c.num_attention_heads;
  c.max_position_embeddings = positions;
  c.norm_eps = 1e-5;
  return c;
}

Config llama_2_7b() {
  Config c;
  c.vocab_size = 32000;
  c.hidden_size = 4096;
  c.intermediate_size = 11008;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 32;
  c.head_dim = 128;
  c.max_position_embeddings = 4096;
  c.norm_eps = 1e-5;
  c.dtype = "float16";
  c.bos_token_id = 1;
  c.eos_token_id = {2};
  return c;
}

Config llama_3_8b() {
  Config c = llama_2_7b();
  c.vocab_size = 128256;
  c.intermediate_size = 14336;
  c.num_key_value_heads = 8;
  c.max_position_embeddings = 8192;
  c.rope_theta = 500000;
  c.dtype = "bfloat16";
  c.bos_token_id = 128000;
  c.eos_token_id = {128001};
  return c;
}

Config llama_3_1_8b() {
  Config c = llama_3_8b();
  c.max_position_embeddings = 131072;
  c.rope_scaling = RopeScaling{
      .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 8192};
  return c;
}

Config llama_3_1_70b() {
  Config c = llama_3_1_8b();
  c.hidden_size = 8192;
  c.intermediate_size = 28672;
  c.num_hidden_layers = 80;
  c.num_attention_heads = 64;
  return c;
}

Config llama_3_1_405b() {
  Config c = llama_3_1_8b();
  c.hidden_size = 16384;
  c.intermediate_size = 53248;
  c.num_hidden_layers = 126;
  c.num_attention_heads = 128;
  return c;
}

Config llama_3_2_1b() {
  Config c = llama_3_1_8b();
  c.hidden_size = 2048;
  c.intermediate_size = 8192;
  c.num_hidden_layers = 16;
  c.head_dim = 64;
  c.rope_scaling->factor = 32;
  c.tie_word_embeddings = true;
  return c;
}

}  // namespace

Family llama_like(const std::string& model_type, const std::string& architecture, decltype(Family::read) read,
                  decltype(Family::write) write, decltype(Family::presets) presets) {
  const std::string layer = "model.layers.*.", attention = layer + "self_attn.", mlp = layer + "mlp.";
  return {.model_type = model_type,
          .architecture = architecture,
          .read = read,
          .write = write,
          .field_names = {{"norm_eps", "rms_norm_eps"}},
          .modules = {{attention + "qkv_proj",
                       {attention + "q_proj", attention + "k_proj", attention + "v_proj"}},
                      {mlp + "gate_up_proj", {mlp + "gate_proj", mlp + "up_proj"}}},
          .optional_prefix = "model.",
          .redundant_suffixes = {".rotary_emb.inv_freq"},
          .presets = std::move(presets)};
}

Family llama_family() {
  return llama_like("llama", "LlamaForCausalLM", read_llama, write_llama,
                    {{"tiny", byte_level(256, 688, /*layers=*/6, /*positions=*/1024)},
                     {"small", byte_level(512, 1376, /*layers=*/8, /*positions=*/2048)},
                     {"llama-2-7b", llama_2_7b()},
                     {"llama-3.2-1b", llama_3_2_1b()},
                     {"llama-3-8b", llama_3_8b()},
                     {"llama-3.1-8b", llama_3_1_8b()},
                     {"llama-3.1-70b", llama_3_1_70b()},
                     {"llama-3.1-405b", llama_3_1_405b()}});
}

}  // namespace shardwise::config
