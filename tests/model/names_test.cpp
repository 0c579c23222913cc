#include "shardwise/model/names.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "shardwise/model/decoder.h"
#include "tests/support/reference.h"

namespace shardwise::model::names_test {
namespace {

using base::ShardRule;
using base::Split;
using Piece = ShardRule::Piece;

bool same(const std::vector<Piece>& pieces, const Piece& b) {
  const Piece& a = pieces.at(0);
  return pieces.size() == 1 && a.global_begin == b.global_begin && a.local_begin == b.local_begin &&
         a.size == b.size;
}

config::ParameterInfo parameter(const std::string& name, std::vector<int64_t> shape, const ShardRule& rule) {
  return {name, std::move(shape), rule};
}

TEST(StoredTensors, FusedQkvIsThreeTensorsWithOverlappingKvHeads) {
  // 6 query and 3 KV heads of 2 elements on 2 ranks: rank 1 holds KV heads 1 and 2; rank 0 owns KV head 1.
  const Split query = Split::even("heads", 6, 2), kv = Split::kv_heads_of(query, 3);
  const auto stored = stored_tensors(
      parameter("model.layers.0.self_attn.qkv_proj.weight", {24, 5}, {0, {{query, 2}, {kv, 2}, {kv, 2}}}),
      config::preset("tiny"));
  ASSERT_EQ(stored.size(), 3);
  EXPECT_EQ(stored[0].name, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(stored[1].name, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(stored[2].name, "model.layers.0.self_attn.v_proj.weight");
  EXPECT_EQ(stored[0].shape, (std::vector<int64_t>{12, 5}));
  EXPECT_EQ(stored[2].shape, (std::vector<int64_t>{6, 5}));
  EXPECT_TRUE(same(stored[0].held(1), {6, 0, 6}));
  EXPECT_TRUE(same(stored[0].owned(1), {6, 0, 6}));
  EXPECT_TRUE(same(stored[1].held(0), {0, 6, 4}));
  EXPECT_TRUE(same(stored[1].held(1), {2, 6, 4}));
  EXPECT_TRUE(same(stored[1].owned(1), {4, 8, 2}));
  EXPECT_TRUE(same(stored[2].held(1), {2, 10, 4}));
}

TEST(StoredTensors, GateUpIsTwoTensors) {
  const Split ffn = Split::even("ffn", 5, 2);
  const auto stored = stored_tensors(
      parameter("model.layers.1.mlp.gate_up_proj.bias", {10}, {0, {{ffn}, {ffn}}}), config::preset("tiny"));
  ASSERT_EQ(stored.size(), 2);
  EXPECT_EQ(stored[0].name, "model.layers.1.mlp.gate_proj.bias");
  EXPECT_EQ(stored[1].name, "model.layers.1.mlp.up_proj.bias");
  EXPECT_EQ(stored[1].shape, (std::vector<int64_t>{5}));
  EXPECT_TRUE(same(stored[1].held(1), {3, 2, 2}));
}

TEST(StoredTensors, ReplicatedParameterHasOneOwner) {
  const auto stored =
      stored_tensors(parameter("model.norm.weight", {7}, ShardRule::replicated()), config::preset("tiny"));
  ASSERT_EQ(stored.size(), 1);
  EXPECT_EQ(stored[0].name, "model.norm.weight");
  EXPECT_TRUE(same(stored[0].held(2), {0, 0, 7}));
  EXPECT_EQ(stored[0].owned(0).at(0).size, 7);
  EXPECT_EQ(stored[0].owned(2).at(0).size, 0);
}

TEST(StoredTensors, Phi3TensorsContainAllSegments) {
  // 6 query and 3 KV heads: in the file k begins at row 12 and v at row 18.
  const Split query = Split::even("heads", 6, 2), kv = Split::kv_heads_of(query, 3);
  const auto stored = stored_tensors(
      parameter("model.layers.0.self_attn.qkv_proj.weight", {24, 5}, {0, {{query, 2}, {kv, 2}, {kv, 2}}}),
      config::preset("phi-3-mini"));
  ASSERT_EQ(stored.size(), 1);
  EXPECT_EQ(stored[0].name, "model.layers.0.self_attn.qkv_proj.weight");
  EXPECT_EQ(stored[0].shape, (std::vector<int64_t>{24, 5}));
  const auto held = stored[0].held(1), owned = stored[0].owned(1);
  ASSERT_EQ(held.size(), 3);
  EXPECT_TRUE(same({held[0]}, {6, 0, 6}));
  EXPECT_TRUE(same({held[1]}, {14, 6, 4}));
  EXPECT_TRUE(same({held[2]}, {20, 10, 4}));
  EXPECT_TRUE(same({owned[1]}, {16, 8, 2}));
}

TEST(StoredTensors, Gpt2TensorsAreTransposed) {
  const Split heads = Split::even("heads", 3, 2), ffn = Split::even("ffn", 5, 2);
  const auto qkv = stored_tensors(parameter("model.layers.7.self_attn.qkv_proj.weight", {18, 6},
                                            {0, {{heads, 2}, {heads, 2}, {heads, 2}}}),
                                  config::preset("gpt2"));
  ASSERT_EQ(qkv.size(), 1);
  EXPECT_EQ(qkv[0].name, "transformer.h.7.attn.c_attn.weight");
  EXPECT_EQ(qkv[0].shape, (std::vector<int64_t>{6, 18}));
  EXPECT_EQ(qkv[0].dim, 1);
  EXPECT_TRUE(same({qkv[0].held(1)[1]}, {6 + 4, 2, 2}));
  const auto down =
      stored_tensors(parameter("model.layers.7.mlp.down_proj.weight", {6, 5}, ShardRule::sharded(1, ffn)),
                     config::preset("gpt2"));
  EXPECT_EQ(down[0].name, "transformer.h.7.mlp.c_proj.weight");
  EXPECT_EQ(down[0].shape, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(down[0].dim, 0);
  EXPECT_TRUE(same(down[0].held(1), {3, 0, 2}));
  const at::Tensor local = at::empty({6, 2});
  EXPECT_EQ(down[0].oriented(local).sizes(), (std::vector<int64_t>{2, 6}));
  const auto bias = stored_tensors(
      parameter("model.layers.7.mlp.up_proj.bias", {5}, ShardRule::sharded(0, ffn)), config::preset("gpt2"));
  EXPECT_EQ(bias[0].name, "transformer.h.7.mlp.c_fc.bias");
  EXPECT_FALSE(bias[0].is_transposed);
}

TEST(StoredTensors, NamesAndShapesAreThoseOfHuggingFace) {
  for (const bool is_tied : {false, true}) {
    config::Config config = config::preset("tiny");
    config.num_hidden_layers = 2;
    config.tie_word_embeddings = is_tied;
    config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
    const DecoderWeights weights(config, comm::Group(), at::kFloat);
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const nn::UsedParameter& used : weights.used_parameters()) {
      for (const StoredTensor& stored : stored_tensors(*used.parameter, config))
        shapes[stored.name] = stored.shape;
    }
    EXPECT_EQ(shapes, testing::stored_shapes(config));
  }
}

TEST(StoredTensors, RequireAHeadPerRank) {
  const config::Config config = config::preset("tiny");
  EXPECT_EQ(stored_tensors(config, /*tp=*/8).size(), stored_tensors(config, /*tp=*/1).size());
  EXPECT_THROW(stored_tensors(config, /*tp=*/9), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::model::names_test
