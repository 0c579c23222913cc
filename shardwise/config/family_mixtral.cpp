// Mixtral: Mistral whose MLPs are mixtures of experts; can only be planned. Preset: the config.json of
// mistralai/Mixtral-8x7B-v0.1.
#include "shardwise/config/family.h"
#include "shardwise/config/fields.h"

namespace shardwise::config {
namespace {

Config mixtral_defaults() {
  Config c;
  c.model_type = "mixtral";
  c.num_key_value_heads = 8;
  c.bos_token_id = 1;
  c.eos_token_id = {2};
  return c;
}

Config read_mixtral(const base::Fields& fields) {
  Config c = mixtral_defaults();
  read_llama_fields(fields, c);
  read_window(fields, c);
  Experts experts{.intermediate_size = c.intermediate_size};
  experts.count = fields.integer("num_local_experts");
  experts.per_token = fields.integer("num_experts_per_tok");
  c.experts = experts;
  return c;
}

Config mixtral_8x7b() {
  Config c = mixtral_defaults();
  c.vocab_size = 32000;
  c.hidden_size = 4096;
  c.intermediate_size = 14336;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.head_dim = 128;
  c.max_position_embeddings = 32768;
  c.rope_theta = 1e6;
  c.norm_eps = 1e-5;
  c.dtype = "bfloat16";
  c.experts = Experts{.count = 8, .per_token = 2, .intermediate_size = 14336};
  return c;
}

}  // namespace

Family mixtral_family() {
  return {.model_type = "mixtral",
          .architecture = "MixtralForCausalLM",
          .read = read_mixtral,
          .field_names = {{"norm_eps", "rms_norm_eps"}, {"num_experts", "num_local_experts"}},
          .presets = {{"mixtral-8x7b", mixtral_8x7b()}}};
}

}  // namespace shardwise::config
