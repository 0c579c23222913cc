// The parameter table against literals, and against the parameters of the layers that are built from it.
#include "shardwise/config/parameters.h"

#include <gtest/gtest.h>

#include <mutex>

#include "shardwise/model/decoder.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"

namespace shardwise::testing::parameter_table_test {
namespace {

using base::Init;
using base::ParameterUse;
using config::ParameterInfo;
using config::ParameterTable;
using config::StorageFormat;

/// Returns a config of the preset's family that is small enough to allocate. Most have 3 KV heads for 6 query
/// heads, so that KV heads are replicated.
config::Config small_of(const std::string& preset) {
  config::Config config = config::preset(preset);
  const config::Config small = small_config();
  config.num_key_value_heads = config.num_key_value_heads == config.num_attention_heads ? 6 : 3;
  config.vocab_size = small.vocab_size;
  config.hidden_size = small.hidden_size;
  config.intermediate_size = small.intermediate_size;
  config.num_hidden_layers = small.num_hidden_layers;
  config.num_attention_heads = small.num_attention_heads;
  config.head_dim = small.head_dim;
  config.max_position_embeddings = small.max_position_embeddings;
  return config;
}

config::Config with_all_biases() {
  config::Config config = small_config();
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
  return config;
}

/// Returns a config of which every linear weight and the embedding are quantized, when a load reads them or
/// in the files.
config::Config quantized(config::Quantization::FileFormat file_format) {
  config::Config config = with_all_biases();
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.quantization = {.file_format = file_format, .bits = 8, .group_size = 8};
  config.quantization->lm_head = config.quantization->embeddings = true;
  return config;
}

/// Returns configs that together contain every kind of layer.
std::vector<config::Config> configs() {
  std::vector<config::Config> configs = {with_all_biases(),
                                         quantized(config::Quantization::FileFormat::dense),
                                         quantized(config::Quantization::FileFormat::gptq)};
  for (const char* preset :
       {"tiny", "llama-3.2-1b", "mistral-7b", "qwen2.5-7b", "qwen3-32b", "phi-3-mini", "gpt2"}) {
    configs.push_back(small_of(preset));
  }
  return configs;
}

void expect_same(const base::ShardRule& listed, const base::ShardRule& built, int rank,
                 const std::string& where) {
  EXPECT_EQ(listed.dim, built.dim) << where;
  ASSERT_EQ(listed.segments.size(), built.segments.size()) << where;
  for (size_t i = 0; i < listed.segments.size(); ++i) {
    const base::Segment &a = listed.segments[i], &b = built.segments[i];
    EXPECT_EQ(a.split.name(), b.split.name()) << where;
    EXPECT_EQ(a.range(rank), b.range(rank)) << where;
    EXPECT_EQ(a.owned(rank), b.owned(rank)) << where;
    EXPECT_EQ(a.size(), b.size()) << where;
  }
}

void expect_same(const ParameterInfo& listed, const nn::UsedParameter& built, const comm::Group& group) {
  const parallel::Parameter& parameter = *built.parameter;
  const std::string where = parameter.name + " on rank " + std::to_string(group.rank());
  EXPECT_EQ(listed.name, parameter.name);
  EXPECT_EQ(listed.shape, parameter.global_shape) << where;
  expect_same(listed.rule, parameter.rule, group.rank(), where);
  EXPECT_EQ(listed.use, built.use) << where;
  EXPECT_EQ(listed.format != StorageFormat::dense, parameter.panels != nullptr) << where;
  const auto local_shape = listed.rule.local_shape(listed.shape, group.rank());
  EXPECT_EQ(parameter.size(/*dim=*/0), local_shape[0]) << where;
  if (parameter.panels) {
    EXPECT_EQ(parameter.size(/*dim=*/1), local_shape[1]) << where;
    return;
  }
  EXPECT_EQ(parameter.value.sizes(), at::IntArrayRef(local_shape)) << where;
  EXPECT_TRUE(listed.init == parameter.init) << where;
}

TEST(ParameterTable, MatchesTheLayersOfEveryFamilyAtEveryTpSize) {
  for (const config::Config& config : configs()) {
    for (int tp = 1; tp <= 4; ++tp) {
      const ParameterTable table(config, config::make_layout(config, tp));
      std::mutex mutex;
      on_ranks(tp, [&](const comm::Group& group) {
        const model::DecoderWeights weights(config, group, at::kFloat);
        const std::lock_guard lock(mutex);
        ASSERT_EQ(table.size(), weights.used_parameters().size()) << config.model_type;
        for (size_t i = 0; i < table.size(); ++i) expect_same(table[i], weights.used_parameters()[i], group);
      });
    }
  }
}

struct Expected {
  const char* name;
  std::vector<int64_t> shape, rank_1_shape;  // on 2 ranks
  ParameterUse use;
  Init init;
};

void expect_listed(const config::Config& config, const std::vector<Expected>& expected) {
  const ParameterTable table(config, config::make_layout(config, /*tp=*/2));
  for (const auto& [name, shape, rank_1_shape, use, init] : expected) {
    const ParameterInfo& listed = table.at(name);
    EXPECT_EQ(listed.shape, shape) << name;
    EXPECT_EQ(listed.rule.local_shape(listed.shape, /*rank=*/1), rank_1_shape) << name;
    EXPECT_EQ(listed.use, use) << name;
    EXPECT_TRUE(listed.init == init) << name;
  }
}

/// 6 query and 3 KV heads of 4 elements: rank 1 holds query heads 3 to 5 and KV heads 1 and 2.
TEST(ParameterTable, ListsTheParametersOfALlama) {
  const ParameterUse sharded = ParameterUse::sharded, residual = ParameterUse::on_residual;
  const Init normal = Init::normal(0.02), scaled = Init::normal(0.02 / 2), zero = Init::constant(0);
  const config::Config config = with_all_biases();
  EXPECT_EQ(ParameterTable(config).size(), 1 + 2 * 10 + 2);
  expect_listed(config, {{"model.embed_tokens.weight", {17, 10}, {8, 10}, sharded, normal},
                         {"model.layers.1.input_layernorm.weight", {10}, {10}, residual, Init::constant(1)},
                         {"model.layers.1.self_attn.qkv_proj.weight", {48, 10}, {28, 10}, sharded, normal},
                         {"model.layers.1.self_attn.qkv_proj.bias", {48}, {28}, sharded, zero},
                         {"model.layers.1.self_attn.o_proj.weight", {10, 24}, {10, 12}, sharded, scaled},
                         {"model.layers.1.self_attn.o_proj.bias", {10}, {10}, residual, zero},
                         {"model.layers.1.mlp.gate_up_proj.weight", {26, 10}, {12, 10}, sharded, normal},
                         {"model.layers.1.mlp.gate_up_proj.bias", {26}, {12}, sharded, zero},
                         {"model.layers.1.mlp.down_proj.weight", {10, 13}, {10, 6}, sharded, scaled},
                         {"model.layers.1.mlp.down_proj.bias", {10}, {10}, residual, zero},
                         {"model.norm.weight", {10}, {10}, residual, Init::constant(1)},
                         {"lm_head.weight", {17, 10}, {8, 10}, sharded, normal}});
}

TEST(ParameterTable, ListsHeadNormsPositionsAndLayerNorms) {
  expect_listed(
      small_of("qwen3-32b"),
      {{"model.layers.0.self_attn.q_norm.weight", {4}, {4}, ParameterUse::per_head, Init::constant(1)}});
  const config::Config gpt2 = small_of("gpt2");
  const ParameterUse residual = ParameterUse::on_residual;
  expect_listed(
      gpt2,
      {{"model.embed_positions.weight", {16, 10}, {16, 10}, residual, Init::normal(0.02)},
       {"model.norm.bias", {10}, {10}, residual, Init::constant(0)},
       {"model.layers.0.mlp.up_proj.weight", {13, 10}, {6, 10}, ParameterUse::sharded, Init::normal(0.02)}});
  EXPECT_FALSE(ParameterTable(gpt2).contains("lm_head.weight"));  // tied
}

TEST(ParameterTable, StoresWeightsAsTheConfigQuantizesThem) {
  config::Config config = quantized(config::Quantization::FileFormat::gptq);
  config.quantization->lm_head = false;
  const ParameterTable packed(config);
  EXPECT_EQ(packed.at("model.embed_tokens.weight").format, StorageFormat::packed);
  EXPECT_EQ(packed.at("model.layers.0.mlp.down_proj.weight").format, StorageFormat::packed);
  EXPECT_EQ(packed.at("model.layers.0.mlp.down_proj.bias").format, StorageFormat::dense);
  EXPECT_EQ(packed.at("model.norm.weight").format, StorageFormat::dense);
  EXPECT_EQ(packed.at("lm_head.weight").format, StorageFormat::dense);
  config.quantization->file_format = config::Quantization::FileFormat::dense;
  EXPECT_EQ(ParameterTable(config).at("model.layers.0.self_attn.qkv_proj.weight").format,
            StorageFormat::quantized);
}

}  // namespace
}  // namespace shardwise::testing::parameter_table_test
