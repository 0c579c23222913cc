// Every family's config.json (fields of transformers 4 and 5, defaults, rejected options) and the tensors in
// its files. tests/python compares both with transformers.
#include "shardwise/config/family.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardwise/model/names.h"
#include "tests/support/error_text.h"

namespace shardwise::config::family_test {
namespace {

using nlohmann::json;
using test::contains, test::error_text;

json with(json object, const json& changes) {
  object.update(changes);
  return object;
}

/// Returns the required fields of a family derived from Llama.
json llama_like(const std::string& model_type, const json& changes = json::object()) {
  return with({{"model_type", model_type},
               {"vocab_size", 40000},
               {"hidden_size", 48},
               {"intermediate_size", 101},
               {"num_hidden_layers", 4},
               {"num_attention_heads", 8},
               {"num_key_value_heads", 4},
               {"rms_norm_eps", 1e-5},
               {"max_position_embeddings", 64}},
              changes);
}

json gpt2(const json& changes = json::object()) {
  return with({{"model_type", "gpt2"},
               {"vocab_size", 50257},
               {"n_positions", 64},
               {"n_embd", 48},
               {"n_layer", 2},
               {"n_head", 6}},
              changes);
}

Config parse(const json& fields) {
  return parse_config(fields.dump(), "c");
}

std::string parse_error(const json& fields) {
  return error_text([&] { parse(fields); });
}

std::vector<bool> windows(const Config& config) {
  std::vector<bool> has;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    has.push_back(config.window_of(layer).has_value());
  }
  return has;
}

TEST(Mistral, HasAWindowInEveryLayerUnlessNull) {
  EXPECT_EQ(parse(llama_like("mistral", {{"sliding_window", 7}})).window_of(3), 7);
  EXPECT_EQ(parse(llama_like("mistral")).window_of(0), 4096);
  EXPECT_FALSE(parse(llama_like("mistral", {{"sliding_window", nullptr}})).window_of(0));
  EXPECT_EQ(parse_error(llama_like("mistral", {{"sliding_window", 0}})),
            "c: sliding_window must be from 1 to 2147483647; got 0");
  EXPECT_EQ(parse_error(llama_like("mistral", {{"sliding_window", "7"}})),
            "c: sliding_window must be an integer; got \"7\"");
}

TEST(Mistral, DefaultsToEightKvHeads) {
  json fields = llama_like("mistral", {{"num_attention_heads", 16}, {"head_dim", 4}});
  fields.erase("num_key_value_heads");
  EXPECT_EQ(parse(fields).num_key_value_heads, 8);
  fields["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse(fields).num_key_value_heads, 16);
}

TEST(Qwen2, HasBiasesOnQkvOnly) {
  const Config c = parse(llama_like("qwen2"));
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_FALSE(c.attention_out_bias || c.mlp_bias || c.qk_norm || c.sliding_window);
  EXPECT_FALSE(c.bos_token_id);
  EXPECT_TRUE(c.eos_token_id.empty());
}

TEST(Qwen, HugeLayerCountIsRejected) {
  EXPECT_EQ(parse_error(llama_like("qwen2", {{"num_hidden_layers", int64_t{1} << 62}})),
            "c: num_hidden_layers must be from 1 to 10000; got 4611686018427387904");
}

TEST(Qwen, MaxWindowLayersSelectsTheLayersWithAWindow) {
  for (const std::string family : {"qwen2", "qwen3"}) {
    const json used = llama_like(family, {{"use_sliding_window", true}, {"sliding_window", 5}});
    const Config c = parse(with(used, {{"max_window_layers", 3}}));
    EXPECT_EQ(windows(c), (std::vector<bool>{false, false, false, true}));
    EXPECT_EQ(c.window_of(3), 5);
    const Config all = parse(with(used, {{"max_window_layers", 0}}));
    EXPECT_EQ(windows(all), std::vector<bool>(4, true));
    EXPECT_TRUE(all.sliding_layers.empty());
    EXPECT_FALSE(
        parse(used)
            .sliding_window);  // max_window_layers defaults to 28: none of the four layers has a window
    EXPECT_FALSE(parse(with(used, {{"max_window_layers", 3}, {"use_sliding_window", false}})).sliding_window);
    EXPECT_FALSE(parse(llama_like(family, {{"max_window_layers", 3}})).sliding_window);
  }
}

TEST(Qwen, LayerTypesSelectTheLayersWithAWindow) {
  const std::vector<std::string> types = {"sliding_attention", "full_attention", "full_attention",
                                          "sliding_attention"};
  for (const std::string family : {"qwen2", "qwen3"}) {
    const json used =
        llama_like(family, {{"use_sliding_window", true}, {"sliding_window", 5}, {"layer_types", types}});
    EXPECT_EQ(windows(parse(used)), (std::vector<bool>{true, false, false, true}));
    EXPECT_EQ(parse_config(to_json(parse(used)), "c"), parse(used));
    EXPECT_PRED2(contains, parse_error(with(used, {{"use_sliding_window", false}})),
                 "c: layer_types must be full_attention for all layers without use_sliding_window and a "
                 "sliding_window; got [\"sliding_attention\",");
    EXPECT_EQ(parse_error(with(used, {{"layer_types", {"full_attention"}}})),
              "c: layer_types must be a list of num_hidden_layers, 4, types; got [\"full_attention\"]");
    EXPECT_EQ(parse_error(with(used, {{"layer_types", {"full_attention", "a", "b", "c"}}})),
              "c: layer_types must contain full_attention and sliding_attention only; got \"a\"");
  }
}

TEST(Qwen3, HasQkNormAndItsOwnHeadDim) {
  const Config c = parse(llama_like("qwen3"));
  EXPECT_TRUE(c.qk_norm);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_FALSE(c.qkv_bias || c.attention_out_bias);
  const Config biased = parse(llama_like("qwen3", {{"attention_bias", true}, {"head_dim", 10}}));
  EXPECT_TRUE(biased.qkv_bias && biased.attention_out_bias);
  EXPECT_EQ(biased.head_dim, 10);
}

TEST(Phi3, HasAWindowOnlyIfGiven) {
  EXPECT_FALSE(parse(llama_like("phi3")).sliding_window);
  EXPECT_EQ(parse(llama_like("phi3", {{"sliding_window", 2047}})).window_of(1), 2047);
  EXPECT_EQ(parse(llama_like("phi3")).eos_token_id, std::vector<int64_t>{32000});
}

TEST(Phi3, SupportsPartialRotaryFactor) {
  const Config newer = parse(llama_like(
      "phi3",
      {{"head_dim", 8}, {"rope_parameters", {{"rope_theta", 100.0}, {"partial_rotary_factor", 0.5}}}}));
  EXPECT_EQ(newer.rotary_dim(), 4);
  EXPECT_EQ(inverse_frequencies(newer), (std::vector<double>{1, 0.1}));
  const json older = {{"head_dim", 8}, {"rope_theta", 100.0}, {"partial_rotary_factor", 0.5}};
  EXPECT_EQ(parse(llama_like("phi3", older)), newer);
  EXPECT_EQ(parse_config(to_json(newer), "c"), newer);
  EXPECT_EQ(parse_error(llama_like("phi3", {{"partial_rotary_factor", 1.5}})),
            "c: partial_rotary_factor must be above 0 and at most 1; got 1.5");
  EXPECT_EQ(
      parse_error(llama_like("phi3", {{"head_dim", 8}, {"partial_rotary_factor", 0.4}})),
      "c: partial_rotary_factor must be such that the rotated part of head_dim is even and at least 2; got "
      "0.4 for 8");
  EXPECT_EQ(parse_error(llama_like("mistral", {{"partial_rotary_factor", 0.5}})),
            "c: partial_rotary_factor must be 1 for model_type mistral; got 0.5");
}

TEST(Phi3, LongropeIsRejected) {
  const json longrope = {{"type", "longrope"}, {"short_factor", {1, 1, 1}}, {"long_factor", {1, 1, 1}}};
  EXPECT_EQ(parse_error(llama_like("phi3", {{"rope_scaling", longrope}})),
            "c: rope_scaling.rope_type must be default or llama3; got longrope");
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 32}};
  EXPECT_EQ(parse_error(llama_like("phi3", {{"rope_scaling", llama3}})),
            "c: rope_scaling must be default for model_type phi3; got llama3");
}

TEST(Gpt2, ReadsGpt2AndGeneralFieldNames) {
  const Config c = parse(gpt2({{"n_inner", 101}, {"layer_norm_epsilon", 1e-6}, {"attn_pdrop", 0.3}}));
  EXPECT_EQ(c.hidden_size, 48);
  EXPECT_EQ(c.num_hidden_layers, 2);
  EXPECT_EQ(c.num_attention_heads, 6);
  EXPECT_EQ(c.num_key_value_heads, 6);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.max_position_embeddings, 64);
  EXPECT_EQ(c.intermediate_size, 101);
  EXPECT_EQ(c.norm_eps, 1e-6);
  EXPECT_EQ(c.norm, Norm::layer);
  EXPECT_EQ(c.positions, Positions::learned);
  EXPECT_EQ(c.activation, Activation::gelu_tanh);
  EXPECT_TRUE(c.qkv_bias && c.attention_out_bias && c.mlp_bias && c.tie_word_embeddings);
  EXPECT_EQ(c.bos_token_id, 50256);
  const json general = {{"model_type", "gpt2"},      {"vocab_size", 50257},
                        {"hidden_size", 48},         {"num_hidden_layers", 2},
                        {"num_attention_heads", 6},  {"max_position_embeddings", 64},
                        {"layer_norm_epsilon", 1e-5}};
  EXPECT_EQ(parse(general), parse(gpt2()));
  EXPECT_EQ(parse(gpt2()).intermediate_size, 4 * 48);
  EXPECT_EQ(parse(gpt2({{"n_inner", nullptr}})), parse(gpt2()));
}

TEST(Gpt2, ErrorsNameGpt2Fields) {
  EXPECT_EQ(parse_error(gpt2({{"n_embd", nullptr}})), "c: n_embd must be given; got none");
  EXPECT_EQ(parse_error(gpt2({{"n_embd", 0}})), "c: n_embd must be from 1 to 2147483647; got 0");
  EXPECT_EQ(parse_error(gpt2({{"n_embd", int64_t{6} << 60}})),  // four times that overflows 63 bits
            "c: n_embd must be from 1 to 2147483647; got 6917529027641081856");
  EXPECT_EQ(parse_error(gpt2({{"n_layer", 0}})), "c: n_layer must be from 1 to 10000; got 0");
  EXPECT_EQ(parse_error(gpt2({{"n_inner", -1}})), "c: n_inner must be from 1 to 2147483647; got -1");
  EXPECT_EQ(parse_error(gpt2({{"n_positions", 0}})), "c: n_positions must be from 1 to 2147483647; got 0");
  EXPECT_EQ(parse_error(gpt2({{"n_head", 5}})),
            "c: n_embd must be a multiple of n_head if head_dim is not given; got 48 and 5");
  EXPECT_EQ(parse_error(gpt2({{"n_head", 0}})), "c: n_head must be at least 1; got 0");
  EXPECT_EQ(parse_error(gpt2({{"layer_norm_epsilon", 0}})),
            "c: layer_norm_epsilon must be above 0 and at most 1; got 0");
  EXPECT_EQ(parse_error(gpt2({{"hidden_size", 32}})),
            "c: n_embd must be the same as hidden_size; got 48 and 32");
}

TEST(Gpt2, UnsupportedVariantsAreRejected) {
  EXPECT_EQ(parse_error(gpt2({{"activation_function", "relu"}})),
            "c: activation_function must be gelu_new, gelu_pytorch_tanh or gelu; got relu");
  EXPECT_EQ(parse_error(gpt2({{"scale_attn_weights", false}})),
            "c: scale_attn_weights must be true; got false");
  EXPECT_EQ(parse_error(gpt2({{"scale_attn_by_inverse_layer_idx", true}})),
            "c: scale_attn_by_inverse_layer_idx must be false; got true");
  EXPECT_EQ(parse_error(gpt2({{"add_cross_attention", true}})),
            "c: add_cross_attention must be false; got true");
  EXPECT_EQ(parse(gpt2({{"activation_function", "gelu"}})).activation, Activation::gelu);
  EXPECT_EQ(parse(gpt2({{"activation_function", "gelu_pytorch_tanh"}})).activation, Activation::gelu_tanh);
}

// The published files, including fields that have no effect here.
TEST(PublishedConfigs, EqualThePresets) {
  EXPECT_EQ(parse_config(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
      "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
      "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
      "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
      "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
      "summary_type": "cls_index", "summary_use_proj": true,
      "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
      "vocab_size": 50257})",
                         "gpt2"),
            preset("gpt2"));
  EXPECT_EQ(parse_config(R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
      "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
      "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})",
                         "mistral"),
            preset("mistral-7b"));
  EXPECT_EQ(parse_config(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
      "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
      "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
      "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
      "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
      "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})",
                         "qwen2.5"),
            preset("qwen2.5-0.5b"));
}

TEST(ToJson, RejectsWhatTheFamilyCannotExpress) {
  const auto error_with = [](const std::string& preset_name, void (*change)(Config&)) {
    Config config = preset(preset_name);
    change(config);
    return error_text([&] { to_json(config); });
  };
  const std::string biased = error_with("tiny", [](Config& c) { c.qkv_bias = true; });
  EXPECT_TRUE(biased.starts_with("config: must be expressible in a config.json of model_type llama"));
  EXPECT_NE(error_with("tiny", [](Config& c) { c.qk_norm = true; }), "");
  EXPECT_NE(error_with("tiny", [](Config& c) { c.sliding_window = 8; }), "");
  EXPECT_NE(error_with("mistral-7b", [](Config& c) { c.norm = Norm::layer; }), "");
  EXPECT_NE(error_with("qwen2.5-0.5b", [](Config& c) { c.qkv_bias = false; }), "");
  EXPECT_NE(error_with("gpt2", [](Config& c) { c.positions = Positions::rotary; }), "");
  EXPECT_NE(error_with("gpt2", [](Config& c) { c.activation = Activation::silu_gated; }), "");
}

TEST(Families, UnknownFamilyListsTheKnownOnes) {
  const json unknown = llama_like("gemma");
  EXPECT_EQ(parse_error(unknown),
            "c: model_type must be one of llama, mistral, qwen2, qwen3, phi3, gpt2, mixtral, qwen3_moe, "
            "deepseek_v3; got gemma");
}

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

Shapes stored(const Config& config) {
  Shapes shapes;
  for (const model::StoredTensor& tensor : model::stored_tensors(config, /*tp=*/1))
    shapes.emplace_back(tensor.name, tensor.shape);
  return shapes;
}

TEST(StoredTensors, Gpt2IsTransposedWithItsOwnNames) {
  Config c = parse(gpt2({{"n_inner", 101}, {"n_layer", 1}}));
  const Shapes expected = {{"transformer.wte.weight", {50257, 48}},
                           {"transformer.wpe.weight", {64, 48}},
                           {"transformer.h.0.ln_1.weight", {48}},
                           {"transformer.h.0.ln_1.bias", {48}},
                           {"transformer.h.0.attn.c_attn.weight", {48, 144}},
                           {"transformer.h.0.attn.c_attn.bias", {144}},
                           {"transformer.h.0.attn.c_proj.weight", {48, 48}},
                           {"transformer.h.0.attn.c_proj.bias", {48}},
                           {"transformer.h.0.ln_2.weight", {48}},
                           {"transformer.h.0.ln_2.bias", {48}},
                           {"transformer.h.0.mlp.c_fc.weight", {48, 101}},
                           {"transformer.h.0.mlp.c_fc.bias", {101}},
                           {"transformer.h.0.mlp.c_proj.weight", {101, 48}},
                           {"transformer.h.0.mlp.c_proj.bias", {48}},
                           {"transformer.ln_f.weight", {48}},
                           {"transformer.ln_f.bias", {48}}};
  EXPECT_EQ(stored(c), expected);
  c.tie_word_embeddings = false;
  EXPECT_EQ(stored(c).back().first, "lm_head.weight");
}

TEST(StoredTensors, Phi3IsFused) {
  const Shapes shapes = stored(parse(llama_like("phi3", {{"num_hidden_layers", 1}})));
  const Shapes expected = {{"model.embed_tokens.weight", {40000, 48}},
                           {"model.layers.0.input_layernorm.weight", {48}},
                           {"model.layers.0.self_attn.qkv_proj.weight", {96, 48}},
                           {"model.layers.0.self_attn.o_proj.weight", {48, 48}},
                           {"model.layers.0.post_attention_layernorm.weight", {48}},
                           {"model.layers.0.mlp.gate_up_proj.weight", {202, 48}},
                           {"model.layers.0.mlp.down_proj.weight", {48, 101}},
                           {"model.norm.weight", {48}},
                           {"lm_head.weight", {40000, 48}}};
  EXPECT_EQ(shapes, expected);
}

TEST(StoredTensors, QwenHasBiasesOrNorms) {
  const Shapes qwen2 = stored(parse(llama_like("qwen2"))), qwen3 = stored(parse(llama_like("qwen3")));
  const auto count = [](const Shapes& shapes, const std::string& part) {
    return std::count_if(shapes.begin(), shapes.end(),
                         [&](const auto& shape) { return contains(shape.first, part); });
  };
  EXPECT_EQ(count(qwen2, ".bias"), 4 * 3);
  EXPECT_EQ(count(qwen2, "o_proj.bias"), 0);
  EXPECT_EQ(count(qwen2, "_norm.weight"), 0);
  EXPECT_EQ(count(qwen3, ".bias"), 0);
  EXPECT_EQ(count(qwen3, "q_norm.weight") + count(qwen3, "k_norm.weight"), 8);
}

}  // namespace
}  // namespace shardwise::config::family_test
