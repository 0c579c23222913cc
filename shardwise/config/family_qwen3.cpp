// Qwen 3 (dense): Llama with a norm over each head of q and k, and a sliding window in some layers. Presets:
// the config.json of Qwen/Qwen3-0.6B and Qwen3-32B.
#include <nlohmann/json.hpp>

#include "shardwise/config/family_llama.h"
#include "shardwise/config/fields.h"

namespace shardwise::config {
namespace {

Config qwen3_defaults() {
  Config c;
  c.model_type = "qwen3";
  c.num_key_value_heads = 32;
  c.head_dim = 128;
  c.qk_norm = true;
  return c;
}

Config read_qwen3(const base::Fields& fields) {
  Config c = qwen3_defaults();
  read_llama_fields(fields, c);
  check_full_rotation(fields, c);
  fields.or_flag("attention_bias", c.qkv_bias);
  c.attention_out_bias = c.qkv_bias;
  read_layered_window(fields, c);
  return c;
}

void write_qwen3(const Config& c, OrderedJson& out) {
  write_llama_fields(c, out);
  out["attention_bias"] = c.qkv_bias;
  write_layered_window(c, out);
}

Config qwen3_0_6b() {
  Config c = qwen3_defaults();
  c.vocab_size = 151936;
  c.hidden_size = 1024;
  c.intermediate_size = 3072;
  c.num_hidden_layers = 28;
  c.num_attention_heads = 16;
  c.num_key_value_heads = 8;
  c.max_position_embeddings = 40960;
  c.rope_theta = 1e6;
  c.tie_word_embeddings = true;
  c.dtype = "bfloat16";
  c.bos_token_id = 151643;
  c.eos_token_id = {151645};
  return c;
}

Config qwen3_32b() {
  Config c = qwen3_0_6b();
  c.hidden_size = 5120;
  c.intermediate_size = 25600;
  c.num_hidden_layers = 64;
  c.num_attention_heads = 64;
  c.tie_word_embeddings = false;
  return c;
}

}  // namespace

Family qwen3_family() {
  return llama_like("qwen3", "Qwen3ForCausalLM", read_qwen3, write_qwen3,
                    {{"qwen3-0.6b", qwen3_0_6b()}, {"qwen3-32b", qwen3_32b()}});
}

}  // namespace shardwise::config
