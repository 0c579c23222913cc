// Qwen 2 and 2.5: Llama with biases on q, k and v only, and a sliding window in some layers.
// Presets: the config.json of Qwen/Qwen2.5-0.5B and Qwen2.5-7B.
#include "shardwise/config/family_llama.h"
#include "shardwise/config/fields.h"

namespace shardwise::config {
namespace {

Config qwen2_defaults() {
  Config c;
  c.model_type = "qwen2";
  c.num_key_value_heads = 32;
  c.qkv_bias = true;
  return c;
}

Config read_qwen2(const base::Fields& fields) {
  Config c = qwen2_defaults();
  read_llama_fields(fields, c);
  check_full_rotation(fields, c);
  read_layered_window(fields, c);
  return c;
}

void write_qwen2(const Config& c, OrderedJson& out) {
  write_llama_fields(c, out);
  write_layered_window(c, out);
}

Config qwen2_5_0_5b() {
  Config c = qwen2_defaults();
  c.vocab_size = 151936;
  c.hidden_size = 896;
  c.intermediate_size = 4864;
  c.num_hidden_layers = 24;
  c.num_attention_heads = 14;
  c.num_key_value_heads = 2;
  c.head_dim = 64;
  c.max_position_embeddings = 32768;
  c.rope_theta = 1e6;
  c.tie_word_embeddings = true;
  c.dtype = "bfloat16";
  c.bos_token_id = 151643;
  c.eos_token_id = {151643};
  return c;
}

Config qwen2_5_7b() {
  Config c = qwen2_5_0_5b();
  c.vocab_size = 152064;
  c.hidden_size = 3584;
  c.intermediate_size = 18944;
  c.num_hidden_layers = 28;
  c.num_attention_heads = 28;
  c.num_key_value_heads = 4;
  c.head_dim = 128;
  c.max_position_embeddings = 131072;
  c.tie_word_embeddings = false;
  return c;
}

}  // namespace

Family qwen2_family() {
  return llama_like("qwen2", "Qwen2ForCausalLM", read_qwen2, write_qwen2,
                    {{"qwen2.5-0.5b", qwen2_5_0_5b()}, {"qwen2.5-7b", qwen2_5_7b()}});
}

}  // namespace shardwise::config
