// Mistral: Llama with a sliding window. Preset: the config.json of mistralai/Mistral-7B-v0.1.
#include "shardwise/config/family_llama.h"
#include "shardwise/config/fields.h"

namespace shardwise::config {
namespace {

Config mistral_defaults() {
  Config c;
  c.model_type = "mistral";
  c.num_key_value_heads = 8;
  c.sliding_window = 4096;
  c.bos_token_id = 1;
  c.eos_token_id = {2};
  return c;
}

Config read_mistral(const base::Fields& fields) {
  Config c = mistral_defaults();
  read_llama_fields(fields, c);
  check_full_rotation(fields, c);
  read_window(fields, c);
  return c;
}

void write_mistral(const Config& c, OrderedJson& out) {
  write_llama_fields(c, out);
  write_window(c, out);
}

Config mistral_7b() {
  Config c = mistral_defaults();
  c.vocab_size = 32000;
  c.hidden_size = 4096;
  c.intermediate_size = 14336;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.head_dim = 128;
  c.max_position_embeddings = 32768;
  c.norm_eps = 1e-5;
  c.dtype = "bfloat16";
  return c;
}

}  // namespace

Family mistral_family() {
  return llama_like("mistral", "MistralForCausalLM", read_mistral, write_mistral,
                    {{"mistral-7b", mistral_7b()}});
}

}  // namespace shardwise::config
