// sharded_parameters gives the same rules as a model's layers.
#include "shardwise/model/sharding.h"

#include <gtest/gtest.h>

#include <mutex>

#include "shardwise/model/decoder.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"

namespace shardwise::testing::sharding_test {
namespace {

/// Returns configs with 3 KV heads for 6 query heads, so that KV heads are replicated, which together contain
/// every kind of layer.
std::vector<model::Config> configs() {
  model::Config llama = small_config();
  llama.qkv_bias = llama.attention_out_bias = llama.mlp_bias = true;
  model::Config qwen3 = small_config();
  qwen3.model_type = "qwen3";
  qwen3.qk_norm = qwen3.tie_word_embeddings = true;
  model::Config gpt2 = small_config();
  gpt2.model_type = "gpt2";
  gpt2.norm = model::Norm::layer;
  gpt2.positions = model::Positions::learned;
  gpt2.activation = model::Activation::gelu_tanh;
  gpt2.qkv_bias = gpt2.attention_out_bias = gpt2.mlp_bias = true;
  return {llama, qwen3, gpt2};
}

void expect_same(const parallel::Parameter& listed, const parallel::Parameter& of_model, int rank) {
  const std::string where = of_model.name + " on rank " + std::to_string(rank);
  EXPECT_EQ(listed.name, of_model.name);
  EXPECT_EQ(listed.global_shape, of_model.global_shape) << where;
  EXPECT_EQ(listed.rule.dim, of_model.rule.dim) << where;
  ASSERT_EQ(listed.rule.segments.size(), of_model.rule.segments.size()) << where;
  for (size_t i = 0; i < listed.rule.segments.size(); ++i) {
    const base::Segment &a = listed.rule.segments[i], &b = of_model.rule.segments[i];
    EXPECT_EQ(a.split.name(), b.split.name()) << where;
    EXPECT_EQ(a.range(rank), b.range(rank)) << where;
    EXPECT_EQ(a.owned(rank), b.owned(rank)) << where;
    EXPECT_EQ(a.size(), b.size()) << where;
  }
}

TEST(ShardedParameters, MatchTheModelAtEveryTpSize) {
  for (const model::Config& config : configs()) {
    for (int tp = 1; tp <= 4; ++tp) {
      const auto listed = model::sharded_parameters(config, tp);
      std::mutex mutex;
      on_ranks(tp, [&](const comm::Group& group) {
        const model::DecoderWeights weights(config, group, at::kFloat);
        const std::lock_guard lock(mutex);
        ASSERT_EQ(listed.size(), weights.used_parameters().size());
        for (size_t i = 0; i < listed.size(); ++i) {
          expect_same(listed[i], *weights.used_parameters()[i].parameter, group.rank());
        }
      });
    }
  }
}

TEST(ShardedParameters, RequireAHeadPerRank) {
  EXPECT_THROW(model::sharded_parameters(small_config(), 7), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::testing::sharding_test
