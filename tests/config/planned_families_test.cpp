// Families that can only be planned: what their config.json says, and that nothing else accepts them.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <fstream>

#include "shardwise/config/config.h"
#include "shardwise/config/parameters.h"
#include "tests/support/temporary.h"

namespace shardwise::config::planned_families_test {
namespace {

// The fields of the published files that matter to a plan, and some that do not.
constexpr const char* kMixtral = R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
  "max_position_embeddings": 32768, "rope_theta": 1000000.0, "rms_norm_eps": 1e-05, "sliding_window": null,
  "num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02, "hidden_act": "silu",
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2})";
constexpr const char* kQwen = R"({"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
  "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
  "rms_norm_eps": 1e-06, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": false, "hidden_act": "silu",
  "use_sliding_window": false, "sliding_window": null, "max_window_layers": 48, "rope_scaling": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 151643, "eos_token_id": 151645})";
constexpr const char* kDeepSeek = R"({"model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
  "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
  "num_attention_heads": 128, "num_key_value_heads": 128, "max_position_embeddings": 163840,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
  "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
  "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
  "rope_scaling": {"type": "yarn", "factor": 40}, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

/// A config.json in a directory of its own.
class File {
 public:
  explicit File(const std::string& text) { std::ofstream(directory_.path() + "/config.json") << text; }
  Config to_plan() const { return load_config_to_plan(directory_.path()); }
  Config to_run() const { return load_config(directory_.path()); }

 private:
  test::TemporaryDirectory directory_;
};

std::string with(std::string text, const std::string& field, const std::string& value) {
  const size_t begin = text.find("\"" + field + "\"");
  EXPECT_NE(begin, std::string::npos) << field;
  return text.replace(begin, text.find_first_of(",}", begin) - begin, "\"" + field + "\": " + value);
}

std::string error_of(const std::string& text) {
  try {
    File(text).to_plan();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

TEST(PlannedFamilies, ReadTheirPublishedFiles) {
  for (const auto& [text, name] :
       {std::pair{kMixtral, "mixtral-8x7b"}, {kQwen, "qwen3-30b-a3b"}, {kDeepSeek, "deepseek-v3"}}) {
    Config config = File(text).to_plan(), preset = preset_to_plan(name);
    // Neither matters to a plan, and the last file leaves them out.
    config.bos_token_id = preset.bos_token_id;
    config.eos_token_id = preset.eos_token_id;
    EXPECT_EQ(config, preset) << name;
  }
}

TEST(PlannedFamilies, HaveThePublishedNumbersOfParameters) {
  const std::tuple<const char*, int64_t, int64_t> published[] = {
      {"mixtral-8x7b", 46'702'792'704, 12'879'925'248},
      {"qwen3-30b-a3b", 30'532'122'624, 3'353'032'704},
      {"qwen3-235b-a22b", 235'093'634'560, 22'190'763'520},
      {"deepseek-v3", 671'026'419'200, 37'552'297'472}};
  for (const auto& [name, all, active] : published) {
    EXPECT_EQ(parameter_count(preset_to_plan(name)), all) << name;
    EXPECT_EQ(active_parameter_count(preset_to_plan(name)), active) << name;
  }
  const Config dense = preset("llama-3.1-8b");
  EXPECT_EQ(active_parameter_count(dense), parameter_count(dense));
}

TEST(PlannedFamilies, CannotBeRun) {
  for (const char* text : {kMixtral, kQwen, kDeepSeek}) EXPECT_THROW(File(text).to_run(), c10::ValueError);
  EXPECT_THROW(preset("mixtral-8x7b"), c10::ValueError);
  EXPECT_THROW(to_json(preset_to_plan("deepseek-v3")), c10::ValueError);
  for (const std::string& name : preset_names()) EXPECT_FALSE(can_only_be_planned(preset(name))) << name;
}

TEST(PlannedFamilies, NameTheFieldThatTheyRefuse) {
  EXPECT_NE(error_of(with(kMixtral, "num_experts_per_tok", "9")).find("num_experts_per_tok must be from 1"),
            std::string::npos);
  EXPECT_NE(error_of(with(kMixtral, "num_local_experts", "0")).find("num_local_experts must be from 1"),
            std::string::npos);
  EXPECT_NE(error_of(with(kQwen, "decoder_sparse_step", "2")).find("decoder_sparse_step must be 1; got 2"),
            std::string::npos);
  EXPECT_NE(error_of(with(kQwen, "mlp_only_layers", "[3]")).find("mlp_only_layers must be empty; got 1"),
            std::string::npos);
  EXPECT_NE(error_of(with(kDeepSeek, "first_k_dense_replace", "62")).find("first_k_dense_replace must be"),
            std::string::npos);
  EXPECT_NE(error_of(with(kDeepSeek, "kv_lora_rank", "-1")).find("kv_lora_rank must be from 1"),
            std::string::npos);
  EXPECT_NE(error_of(with(kDeepSeek, "n_shared_experts", "-1")).find("n_shared_experts must be"),
            std::string::npos);
  EXPECT_NE(error_of(with(kMixtral, "num_local_experts", "2147483647")).find("fewer than 1e18 parameters"),
            std::string::npos);
}

}  // namespace
}  // namespace shardwise::config::planned_families_test
