#include "shardwise/config/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/error.h"
#include "tests/config/small_json.h"
#include "tests/support/temporary.h"

namespace shardwise::config::config_test {
namespace {

using test::contains, test::error_text;

const json kLlama3Scaling = {{"factor", 32.0},
                             {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0},
                             {"original_max_position_embeddings", 8192},
                             {"rope_type", "llama3"}};

json with(json object, const json& changes) {
  object.update(changes);
  return object;
}

TEST(ParseConfig, MissingFieldsHaveTransformersDefaults) {
  const Config c = parse(small());
  EXPECT_EQ(c.num_key_value_heads, 6);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.activation, Activation::silu_gated);
  EXPECT_EQ(c.norm, Norm::rms);
  EXPECT_EQ(c.positions, Positions::rotary);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_FALSE(c.rope_scaling);
  EXPECT_EQ(c.initializer_range, 0.02);
  EXPECT_FALSE(c.tie_word_embeddings || c.qkv_bias || c.attention_out_bias || c.mlp_bias || c.qk_norm);
  EXPECT_FALSE(c.sliding_window);
  EXPECT_EQ(c.dtype, "float32");
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.eos_token_id, std::vector<int64_t>{2});
}

TEST(ParseConfig, ReadsGivenFields) {
  const Config c = parse(small({{"num_key_value_heads", 3},
                                {"head_dim", 10},
                                {"tie_word_embeddings", true},
                                {"attention_bias", true},
                                {"mlp_bias", true},
                                {"rope_theta", 500000},
                                {"eos_token_id", {5, 6}},
                                {"bos_token_id", 4},
                                {"initializer_range", 0.01},
                                {"architectures", {"LlamaForCausalLM"}},
                                {"use_cache", true}}));
  EXPECT_EQ(c.num_key_value_heads, 3);
  EXPECT_EQ(c.head_dim, 10);
  EXPECT_TRUE(c.tie_word_embeddings && c.qkv_bias && c.attention_out_bias && c.mlp_bias);
  EXPECT_EQ(c.rope_theta, 500000);
  EXPECT_EQ(c.eos_token_id, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(c.bos_token_id, 4);
  EXPECT_EQ(c.initializer_range, 0.01);
}

TEST(ParseConfig, NullTokensAreUnset) {
  json fields = small();
  fields["bos_token_id"] = fields["eos_token_id"] = nullptr;
  EXPECT_FALSE(parse(fields).bos_token_id);
  EXPECT_TRUE(parse(fields).eos_token_id.empty());
}

/// Returns what warn_of_unknown_tokens writes to standard error, without the codes.
std::string warnings_for(const Config& config) {
  ::testing::internal::CaptureStderr();
  warn_of_unknown_tokens(config, "generate");
  return base::without_code(::testing::internal::GetCapturedStderr());
}

TEST(ParseConfig, TokensOutsideTheVocabularyAreKeptWithAWarning) {
  const Config c = parse(small({{"bos_token_id", 100}, {"eos_token_id", {2, -1}}}));
  EXPECT_EQ(c.bos_token_id, 100);
  EXPECT_EQ(c.eos_token_id, (std::vector<int64_t>{2, -1}));
  EXPECT_EQ(parse_config(to_json(c), "c"), c);
  EXPECT_EQ(warnings_for(c),
            "warning: generate: bos_token_id in config.json should be from 0 to below vocab_size, 100; "
            "got 100; no token has it\n"
            "warning: generate: eos_token_id in config.json should be from 0 to below vocab_size, 100; "
            "got -1; no token has it\n");
  EXPECT_EQ(warnings_for(parse(small({{"bos_token_id", 0}, {"eos_token_id", {2, 200, -1, 201}}}))),
            "warning: generate: eos_token_id in config.json should be from 0 to below vocab_size, 100; "
            "got 200, the first of 3 such ids; no token has it\n");
  EXPECT_EQ(warnings_for(parse(small({{"bos_token_id", 0}, {"eos_token_id", 99}}))), "");
}

TEST(ParseConfig, FieldsOfTransformers4And5AreEquivalent) {
  const json older =
      small({{"rope_theta", 500000.0}, {"rope_scaling", kLlama3Scaling}, {"torch_dtype", "bfloat16"}});
  json oldest_scaling = kLlama3Scaling;
  oldest_scaling.erase("rope_type");
  const json oldest = with(older, {{"rope_scaling", with(oldest_scaling, {{"type", "llama3"}})}});
  const json newer =
      small({{"rope_parameters", with(kLlama3Scaling, {{"rope_theta", 500000.0}})}, {"dtype", "bfloat16"}});
  const Config c = parse(newer);
  EXPECT_EQ(c.rope_theta, 500000);
  EXPECT_EQ(c.rope_scaling, (RopeScaling{32, 1, 4, 8192}));
  EXPECT_EQ(c.dtype, "bfloat16");
  EXPECT_EQ(parse(older), c);
  EXPECT_EQ(parse(oldest), c);
  EXPECT_EQ(parse(with(older, newer)), c);
}

TEST(ParseConfig, DefaultRopeTypeScalesNothing) {
  for (const json& changes : {json{{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}}}},
                              json{{"rope_theta", 7}, {"rope_scaling", {{"type", "default"}}}},
                              json{{"rope_theta", 7}, {"rope_parameters", json::object()}}}) {
    const Config c = parse(small(changes));
    EXPECT_EQ(c.rope_theta, 7);
    EXPECT_FALSE(c.rope_scaling);
  }
}

TEST(ParseConfig, ContradictingNamesOfAFieldAreRejected) {
  EXPECT_EQ(parse_error({{"torch_dtype", "float16"}, {"dtype", "bfloat16"}}),
            "c: dtype must be the same as torch_dtype; got bfloat16 and float16");
  EXPECT_EQ(parse_error({{"rope_theta", 10000}, {"rope_parameters", {{"rope_theta", 500000}}}}),
            "c: rope_theta must be the same wherever it is given; got 10000 and 500000");
  EXPECT_PRED2(contains,
               parse_error({{"rope_scaling", kLlama3Scaling}, {"rope_parameters", {{"rope_theta", 1e4}}}}),
               "c: rope_scaling must match rope_parameters");
}

TEST(ParseConfig, EveryMissingRequiredFieldIsReported) {
  const json required = small();
  for (const auto& [name, value] : required.items()) {
    EXPECT_EQ(parse_error({{name, nullptr}}), "c: " + name + " must be given; got none");
    json fields = small();
    fields[name] = nullptr;
    EXPECT_EQ(error_text([&] { parse(fields); }), "c: " + name + " must be given; got none");
  }
  for (const std::string name :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    json scaling = kLlama3Scaling;
    scaling.erase(name);
    EXPECT_EQ(parse_error({{"rope_scaling", scaling}}),
              "c: rope_scaling." + name + " must be given; got none");
  }
}

TEST(ParseConfig, SizesArePositiveIntegers) {
  for (const std::string name :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    EXPECT_EQ(parse_error({{name, "12"}}), "c: " + name + " must be an integer; got \"12\"");
    EXPECT_EQ(parse_error({{name, 12.0}}), "c: " + name + " must be an integer; got 12.0");
    EXPECT_EQ(parse_error({{name, {12}}}), "c: " + name + " must be an integer; got [12]");
    EXPECT_PRED2(contains, parse_error({{name, 18446744073709551615u}}),
                 "c: " + name + " must be below 2^63");
    for (const int64_t wrong : {0, -6}) {
      const std::string text = parse_error({{name, wrong}});
      EXPECT_PRED2(contains, text, "c: " + name + " must be ");
      EXPECT_PRED2(contains, text, "got " + std::to_string(wrong));
    }
  }
  EXPECT_EQ(parse_error({{"vocab_size", int64_t{1} << 40}}),
            "c: vocab_size must be from 1 to 2147483647; got 1099511627776");
}

TEST(ParseConfig, NumbersAreInRange) {
  for (const std::string name : {"rms_norm_eps", "initializer_range", "rope_theta"}) {
    EXPECT_EQ(parse_error({{name, true}}), "c: " + name + " must be a number; got true");
    EXPECT_PRED2(contains, parse_error({{name, 0}}), "c: " + name + " must be above 0");
    EXPECT_PRED2(contains, parse_error({{name, -1e-5}}), "got -1e-05");
  }
  EXPECT_PRED2(contains, parse_error({{"rms_norm_eps", 1.5}}), "at most 1; got 1.5");
  EXPECT_PRED2(contains, parse_error({{"initializer_range", 2}}), "at most 1; got 2");
}

TEST(ParseConfig, RopeScalingIsInRange) {
  const auto error_with = [](const json& changes) {
    return parse_error({{"rope_scaling", with(kLlama3Scaling, changes)}});
  };
  EXPECT_EQ(error_with({{"factor", 0.5}}), "c: rope_scaling.factor must be at least 1; got 0.5");
  EXPECT_EQ(error_with({{"factor", "8"}}), "c: rope_scaling.factor must be a number; got \"8\"");
  EXPECT_EQ(error_with({{"low_freq_factor", 0}}), "c: rope_scaling.low_freq_factor must be above 0; got 0");
  EXPECT_EQ(error_with({{"high_freq_factor", 1}}),
            "c: rope_scaling.high_freq_factor must be above low_freq_factor; got 1 and 1");
  EXPECT_EQ(error_with({{"original_max_position_embeddings", 0}}),
            "c: rope_scaling.original_max_position_embeddings must be at least 1; got 0");
  EXPECT_PRED2(contains, error_with({{"original_max_position_embeddings", 8192.5}}), "an integer");
}

TEST(ParseConfig, UnsupportedOptionsAreRejected) {
  EXPECT_EQ(parse_error({{"model_type", "gemma"}}),
            "c: model_type must be one of llama, mistral, qwen2, qwen3, phi3, gpt2, mixtral, qwen3_moe, "
            "deepseek_v3; got gemma");
  EXPECT_EQ(parse_error({{"hidden_act", "gelu"}}), "c: hidden_act must be silu; got gelu");
  EXPECT_EQ(parse_error({{"torch_dtype", "float8"}}),
            "c: dtype must be float64, float32, bfloat16 or float16; got float8");
  EXPECT_EQ(parse_error({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}),
            "c: rope_scaling.rope_type must be default or llama3; got linear");
  EXPECT_EQ(parse_error({{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2.0}}}}),
            "c: rope_parameters.rope_type must be default or llama3; got yarn");
  EXPECT_PRED2(contains, parse_error({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}),
               "must be 1 for model_type llama; got 0.5");
  EXPECT_PRED2(contains, parse_error({{"partial_rotary_factor", 0.5}}),
               "must be 1 for model_type llama; got 0.5");
}

TEST(ParseConfig, ContradictingFieldsAreRejected) {
  EXPECT_EQ(parse_error({{"num_key_value_heads", 4}}),
            "c: num_key_value_heads must be a divisor of num_attention_heads; got 4 for 6");
  EXPECT_EQ(
      parse_error({{"num_attention_heads", 5}}),
      "c: hidden_size must be a multiple of num_attention_heads if head_dim is not given; got 48 and 5");
  EXPECT_PRED2(contains, parse_error({{"head_dim", 7}}), "c: head_dim must be even");
  EXPECT_PRED2(contains, parse_error({{"num_attention_heads", 16}}),
               "c: head_dim must be even");  // 48 / 16 = 3
  EXPECT_PRED2(contains, parse_error({{"vocab_size", 2000000000}, {"hidden_size", 2000000004}}),
               "1e18 parameters");
}

TEST(Validate, CountsTheLearnedPositionEmbedding) {
  Config config = preset("gpt2");
  config.hidden_size = config.max_position_embeddings = 2000000000;
  EXPECT_PRED2(contains, error_text([&] { validate(config, "c"); }), "1e18 parameters");
  config.positions = Positions::rotary;
  EXPECT_NO_THROW(validate(config, "c"));
}

TEST(ParseConfig, WrongTypesAreRejected) {
  EXPECT_EQ(parse_error({{"model_type", 3}}), "c: model_type must be a string; got 3");
  EXPECT_EQ(parse_error({{"hidden_act", {{"a", 1}}}}), "c: hidden_act must be a string; got {\"a\":1}");
  EXPECT_EQ(parse_error({{"tie_word_embeddings", 1}}), "c: tie_word_embeddings must be true or false; got 1");
  EXPECT_EQ(parse_error({{"attention_bias", "no"}}), "c: attention_bias must be true or false; got \"no\"");
  EXPECT_EQ(parse_error({{"rope_scaling", 8}}), "c: rope_scaling must be a JSON object; got 8");
  EXPECT_EQ(parse_error({{"eos_token_id", "</s>"}}), "c: eos_token_id must be an integer; got \"</s>\"");
  EXPECT_EQ(parse_error({{"dtype", 32}}), "c: dtype must be a string; got 32");
}

TEST(ParseConfig, NonObjectsAndDuplicateFieldsAreRejected) {
  for (const char* text : {"", "[]", "3", "{", "{\"vocab_size\": NaN}"}) {
    EXPECT_TRUE(error_text([&] { parse_config(text, "c"); }).starts_with("c: must be ")) << text;
  }
  const std::string twice = small().dump().substr(1);
  EXPECT_EQ(error_text([&] { parse_config("{\"vocab_size\":7," + twice, "c"); }),
            "c: \"vocab_size\" must not be duplicated; got it twice");
}

TEST(LoadConfig, AcceptsTheFileOrItsDirectory) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("config.json", small().dump());
  EXPECT_EQ(load_config(path), parse(small()));
  EXPECT_EQ(load_config(directory.path()), parse(small()));
  directory.put("config.json", "{}");
  EXPECT_EQ(error_text([&] { load_config(directory.path()); }),
            path + ": model_type must be given; got none");
  EXPECT_PRED2(contains, error_text([&] { load_config(directory / "none"); }), directory / "none");
}

TEST(ToJson, RoundTrips) {
  for (const std::string& name : preset_names()) {
    EXPECT_EQ(parse_config(to_json(preset(name)), name), preset(name));
  }
  Config c = preset("llama-3.2-1b");
  c.eos_token_id = {128001, 128008, 128009};
  c.bos_token_id.reset();
  c.qkv_bias = c.attention_out_bias = c.mlp_bias = true;
  c.norm_eps = 1.2345678901234567e-6;
  EXPECT_EQ(parse_config(to_json(c), "c"), c);
}

TEST(ToJson, WritesFieldsOfTransformers4And5) {
  const json written = json::parse(to_json(preset("llama-3.2-1b")));
  json older = written, newer = written;
  for (const char* name : {"rope_parameters", "dtype"}) older.erase(name);
  for (const char* name : {"rope_theta", "rope_scaling", "torch_dtype"}) newer.erase(name);
  EXPECT_EQ(parse(older), preset("llama-3.2-1b"));
  EXPECT_EQ(parse(newer), preset("llama-3.2-1b"));
  EXPECT_TRUE(json::parse(to_json(preset("tiny")))["eos_token_id"].is_null());
}

TEST(Preset, AllAreValidAndUnknownNamesListThem) {
  for (const std::string& name : preset_names()) EXPECT_NO_THROW(validate(preset(name), name));
  EXPECT_EQ(error_text([] { preset("huge"); }),
            "preset: must be one of tiny, small, llama-2-7b, llama-3.2-1b, llama-3-8b, "
            "llama-3.1-8b, llama-3.1-70b, llama-3.1-405b, mistral-7b, qwen2.5-0.5b, qwen2.5-7b, qwen3-0.6b, "
            "qwen3-32b, phi-3-mini, gpt2, gpt3-175b; got huge");
}

TEST(ParameterCount, EqualsPublishedCounts) {
  EXPECT_EQ(parameter_count(preset("llama-2-7b")), 6'738'415'616);
  EXPECT_EQ(parameter_count(preset("llama-3.2-1b")), 1'235'814'400);
  EXPECT_EQ(parameter_count(preset("llama-3-8b")), 8'030'261'248);
  EXPECT_EQ(parameter_count(preset("llama-3.1-8b")), 8'030'261'248);
  EXPECT_EQ(parameter_count(preset("llama-3.1-70b")), 70'553'706'496);
  EXPECT_EQ(parameter_count(preset("llama-3.1-405b")), 405'853'388'800);
  EXPECT_EQ(parameter_count(preset("mistral-7b")), 7'241'732'096);
  EXPECT_EQ(parameter_count(preset("qwen2.5-0.5b")), 494'032'768);
  EXPECT_EQ(parameter_count(preset("qwen2.5-7b")), 7'615'616'512);
  EXPECT_EQ(parameter_count(preset("qwen3-0.6b")), 596'049'920);
  EXPECT_EQ(parameter_count(preset("qwen3-32b")), 32'762'123'264);
  EXPECT_EQ(parameter_count(preset("phi-3-mini")), 3'821'079'552);
  EXPECT_EQ(parameter_count(preset("gpt2")), 124'439'808);
  EXPECT_NEAR(static_cast<double>(parameter_count(preset("gpt3-175b"))), 175.0e9, 0.5e9);
}

TEST(ParameterCount, CountsBiases) {
  Config c = parse(small({{"num_key_value_heads", 3}}));
  const int64_t without = parameter_count(c);
  c.qkv_bias = c.attention_out_bias = true;
  EXPECT_EQ(parameter_count(c) - without, 2 * (48 + 24 + 24 + 48));
  c.mlp_bias = true;
  EXPECT_EQ(parameter_count(c) - without, 2 * (48 + 24 + 24 + 48) + 2 * (101 + 101 + 48));
}

TEST(InverseFrequencies, ArePowersOfTheta) {
  const Config c = preset("llama-2-7b");
  const std::vector<double> frequencies = inverse_frequencies(c);
  ASSERT_EQ(frequencies.size(), 64u);
  EXPECT_EQ(frequencies[0], 1);
  EXPECT_NEAR(frequencies[32], 1e-2, 1e-17);  // 10000^(-64/128)
  EXPECT_NEAR(frequencies[16], 1e-1, 1e-16);
}

TEST(InverseFrequencies, Llama3ScalesLowFrequencies) {
  const std::vector<double> scaled = inverse_frequencies(preset("llama-3.2-1b"));
  ASSERT_EQ(scaled.size(), 32u);
  // Computed with _compute_llama3_parameters of transformers 5.23 in Python: the first two are unscaled, the
  // next three interpolated, the last two divided by the factor.
  const std::vector<std::pair<int, double>> expected = {{0, 1.0},
                                                        {14, 0.0032114459947525913},
                                                        {15, 0.001290547928209264},
                                                        {16, 0.00042955679655935816},
                                                        {17, 9.70828780262767e-05},
                                                        {18, 1.9461638184831125e-05},
                                                        {31, 9.418306725434909e-08}};
  for (const auto& [i, frequency] : expected) EXPECT_NEAR(scaled[i] / frequency, 1, 1e-13) << i;
}

}  // namespace
}  // namespace shardwise::config::config_test
