// Qwen 3 with a mixture of experts in every block; can only be planned. Presets: the config.json of
// Qwen/Qwen3-30B-A3B and Qwen3-235B-A22B.
#include <c10/util/Exception.h>

#include "shardwise/config/family.h"
#include "shardwise/config/fields.h"

namespace shardwise::config {
namespace {

Config qwen3_moe_defaults() {
  Config c;
  c.model_type = "qwen3_moe";
  c.num_key_value_heads = 4;
  c.head_dim = 128;
  c.qk_norm = true;
  return c;
}

/// Published models have experts in every block.
void check_every_block_has_experts(const base::Fields& fields) {
  int64_t step = 1;
  fields.or_integer("decoder_sparse_step", step);
  std::vector<int64_t> dense;
  fields.or_integers("mlp_only_layers", dense);
  TORCH_CHECK_VALUE(step == 1, fields.label("decoder_sparse_step"), " must be 1; got ", step, " [SW0808]");
  TORCH_CHECK_VALUE(dense.empty(), fields.label("mlp_only_layers"), " must be empty; got ", dense.size(),
                    " layers [SW0809]");
}

Config read_qwen3_moe(const base::Fields& fields) {
  Config c = qwen3_moe_defaults();
  read_llama_fields(fields, c);
  fields.or_flag("attention_bias", c.qkv_bias);
  c.attention_out_bias = c.qkv_bias;
  read_layered_window(fields, c);
  check_every_block_has_experts(fields);
  c.experts = Experts{.count = fields.integer("num_experts"),
                      .per_token = fields.integer("num_experts_per_tok"),
                      .intermediate_size = fields.integer("moe_intermediate_size")};
  return c;
}

Config qwen3_30b_a3b() {
  Config c = qwen3_moe_defaults();
  c.vocab_size = 151936;
  c.hidden_size = 2048;
  c.intermediate_size = 6144;
  c.num_hidden_layers = 48;
  c.num_attention_heads = 32;
  c.max_position_embeddings = 40960;
  c.rope_theta = 1e6;
  c.dtype = "bfloat16";
  c.bos_token_id = 151643;
  c.eos_token_id = {151645};
  c.experts = Experts{.count = 128, .per_token = 8, .intermediate_size = 768};
  return c;
}

Config qwen3_235b_a22b() {
  Config c = qwen3_30b_a3b();
  c.hidden_size = 4096;
  c.intermediate_size = 12288;
  c.num_hidden_layers = 94;
  c.num_attention_heads = 64;
  c.experts->intermediate_size = 1536;
  return c;
}

}  // namespace

Family qwen3_moe_family() {
  return {.model_type = "qwen3_moe",
          .architecture = "Qwen3MoeForCausalLM",
          .read = read_qwen3_moe,
          .field_names = {{"norm_eps", "rms_norm_eps"}},
          .presets = {{"qwen3-30b-a3b", qwen3_30b_a3b()}, {"qwen3-235b-a22b", qwen3_235b_a22b()}}};
}

}  // namespace shardwise::config
