// DeepSeek-V3: latent attention, and a mixture of experts in all blocks but the first ones; can only be
// planned. Preset: the config.json of deepseek-ai/DeepSeek-V3, whose weights are planned as bf16. The module
// for predicting several tokens (num_nextn_predict_layers) is left out.
#include "shardwise/config/family.h"
#include "shardwise/config/fields.h"

namespace shardwise::config {
namespace {

/// Heads are as many as query heads, and have the features of both parts.
void set_heads(Config& c) {
  c.num_key_value_heads = c.num_attention_heads;
  c.head_dim = c.latent_attention->qk_nope_head_dim + c.latent_attention->qk_rope_head_dim;
}

/// The scaling of RoPE (YaRN) matters to no plan and is not read.
Config read_deepseek_v3(const base::Fields& fields) {
  Config c;
  c.model_type = "deepseek_v3";
  c.vocab_size = fields.integer("vocab_size");
  c.hidden_size = fields.integer("hidden_size");
  c.intermediate_size = fields.integer("intermediate_size");
  c.num_hidden_layers = fields.integer("num_hidden_layers");
  c.num_attention_heads = fields.integer("num_attention_heads");
  c.max_position_embeddings = fields.integer("max_position_embeddings");
  fields.or_flag("tie_word_embeddings", c.tie_word_embeddings);
  read_dtype(fields, c);
  c.latent_attention = LatentAttention{.q_lora_rank = fields.integer("q_lora_rank"),
                                       .kv_lora_rank = fields.integer("kv_lora_rank"),
                                       .qk_rope_head_dim = fields.integer("qk_rope_head_dim"),
                                       .qk_nope_head_dim = fields.integer("qk_nope_head_dim"),
                                       .v_head_dim = fields.integer("v_head_dim")};
  const int64_t of_expert = fields.integer("moe_intermediate_size");
  c.experts = Experts{.count = fields.integer("n_routed_experts"),
                      .per_token = fields.integer("num_experts_per_tok"),
                      .intermediate_size = of_expert,
                      .shared_size = fields.integer("n_shared_experts") * of_expert,
                      .first_dense_layers = fields.integer("first_k_dense_replace"),
                      .has_score_bias = true};
  set_heads(c);
  return c;
}

Config deepseek_v3() {
  Config c;
  c.model_type = "deepseek_v3";
  c.vocab_size = 129280;
  c.hidden_size = 7168;
  c.intermediate_size = 18432;
  c.num_hidden_layers = 61;
  c.num_attention_heads = 128;
  c.max_position_embeddings = 163840;
  c.dtype = "bfloat16";
  c.latent_attention = LatentAttention{.q_lora_rank = 1536,
                                       .kv_lora_rank = 512,
                                       .qk_rope_head_dim = 64,
                                       .qk_nope_head_dim = 128,
                                       .v_head_dim = 128};
  c.experts = Experts{.count = 256,
                      .per_token = 8,
                      .intermediate_size = 2048,
                      .shared_size = 2048,
                      .first_dense_layers = 3,
                      .has_score_bias = true};
  set_heads(c);
  return c;
}

}  // namespace

Family deepseek_v3_family() {
  return {.model_type = "deepseek_v3",
          .architecture = "DeepseekV3ForCausalLM",
          .read = read_deepseek_v3,
          .field_names = {{"num_experts", "n_routed_experts"}},
          .presets = {{"deepseek-v3", deepseek_v3()}}};
}

}  // namespace shardwise::config
