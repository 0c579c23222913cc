#include "shardwise/model/names.h"

#include <gtest/gtest.h>

#include "shardwise/model/decoder.h"
#include "tests/support/reference.h"

namespace shardwise::model {
namespace {

using base::ShardRule;
using base::Split;
using Piece = ShardRule::Piece;

bool same(const Piece& a, const Piece& b) {
  return a.global_begin == b.global_begin && a.local_begin == b.local_begin && a.size == b.size;
}

parallel::Parameter parameter(const std::string& name, std::vector<int64_t> shape, const ShardRule& rule) {
  return {name, std::move(shape), rule, parallel::Init::constant(0), {}, {}};
}

TEST(StoredTensors, OfFusedQkvAreThreeWithOverlappingKvHeads) {
  // 6 query and 3 KV heads of 2 on 2 ranks: rank 1 holds KV heads 1 and 2, of which rank 0 owns the first.
  const Split query = Split::even("heads", 6, 2), kv = Split::kv_heads_of(query, 3);
  const auto stored = stored_tensors(
      parameter("model.layers.0.self_attn.qkv_proj.weight", {24, 5}, {0, {{query, 2}, {kv, 2}, {kv, 2}}}));
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

TEST(StoredTensors, OfGateAndUpAreTwo) {
  const Split ffn = Split::even("ffn", 5, 2);
  const auto stored =
      stored_tensors(parameter("model.layers.1.mlp.gate_up_proj.bias", {10}, {0, {{ffn}, {ffn}}}));
  ASSERT_EQ(stored.size(), 2);
  EXPECT_EQ(stored[0].name, "model.layers.1.mlp.gate_proj.bias");
  EXPECT_EQ(stored[1].name, "model.layers.1.mlp.up_proj.bias");
  EXPECT_EQ(stored[1].shape, (std::vector<int64_t>{5}));
  EXPECT_TRUE(same(stored[1].held(1), {3, 2, 2}));
}

TEST(StoredTensors, OfAWholeParameterHaveOneWriter) {
  const auto stored = stored_tensors(parameter("model.norm.weight", {7}, ShardRule::replicated()));
  ASSERT_EQ(stored.size(), 1);
  EXPECT_EQ(stored[0].name, "model.norm.weight");
  EXPECT_TRUE(same(stored[0].held(2), {0, 0, 7}));
  EXPECT_EQ(stored[0].owned(0).size, 7);
  EXPECT_EQ(stored[0].owned(2).size, 0);
}

TEST(StoredTensors, OfAModelAreThoseOfHuggingFace) {
  for (const bool is_tied : {false, true}) {
    Config config = preset("tiny");
    config.num_hidden_layers = 2;
    config.tie_word_embeddings = is_tied;
    config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
    const DecoderWeights weights(config, comm::Group(), at::kFloat);
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const nn::Role& role : weights.roles()) {
      for (const StoredTensor& stored : stored_tensors(*role.parameter)) shapes[stored.name] = stored.shape;
    }
    EXPECT_EQ(shapes, testing::stored_shapes(config));
  }
}

}  // namespace
}  // namespace shardwise::model
