// FLOP of a step against formulas; published_test.cpp compares published figures.
#include "shardwise/plan/operations.h"

#include <gtest/gtest.h>

namespace shardwise::plan::operations_test {
namespace {

double relative(double value, double expected) {
  return value / expected - 1;
}

Workload whole(const config::Config& config, int64_t sequence_length, int64_t batch_size) {
  Workload workload;
  workload.config = config;
  workload.sequence_length = sequence_length;
  workload.batch_size = batch_size;
  workload.element_bytes = 2;
  return workload;
}

// 6(N − vh) + 6Lhs per token: the embedding's rows are not multiplied, and half the keys are visible.
TEST(PlanOperations, CountTheFlopOfATokenOfLlama) {
  for (const char* preset : {"llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"}) {
    const config::Config c = config::preset(preset);
    const int64_t s = 8192;
    const double flop = flop_of(micro_batch_operations(whole(c, s, 1), 0, CountedKeys::visible)).model / s;
    const auto h = static_cast<double>(c.hidden_size), layers = static_cast<double>(c.num_hidden_layers);
    const auto n = static_cast<double>(config::parameter_count(c) - c.vocab_size * c.hidden_size);
    // Norm weights are parameters without products.
    EXPECT_NEAR(relative(flop, 6 * (n - h * (2 * layers + 1)) + 6 * layers * h * s), 0, 1e-12) << preset;
  }
}

TEST(PlanOperations, RanksShareTheFlop) {
  for (const char* preset : {"llama-3-8b", "qwen3-0.6b", "gpt2"}) {
    Workload workload = whole(config::preset(preset), 96, 2);
    const StepFlop one = flop_of(micro_batch_operations(workload, 0, CountedKeys::all));
    for (const int tp : {2, 3, 4}) {
      workload.tp = tp;
      double model = 0;
      for (int rank = 0; rank < tp; ++rank)
        model += flop_of(micro_batch_operations(workload, rank, CountedKeys::all)).model;
      // KV heads that ranks share are computed by each of them.
      const bool has_replicas = workload.config.num_key_value_heads % tp != 0;
      EXPECT_GE(relative(model, one.model), -1e-12) << preset << tp;
      if (!has_replicas) {
        EXPECT_NEAR(relative(model, one.model), 0, 1e-12) << preset << tp;
      }
    }
  }
}

TEST(PlanOperations, FullRecomputationRepeatsTheBlocksForward) {
  Workload workload = whole(config::preset("llama-3-8b"), 512, 1);
  const auto block = [&] { return block_operations(workload, 0, 0, CountedKeys::all); };
  double forward = 0, scores = 0;
  for (const Operation& one : block()) {
    forward += one.forward.flop;
    if (one.kind == Operation::Kind::attention) scores += one.forward.flop / 2;
  }
  EXPECT_DOUBLE_EQ(flop_of(block()).hardware - flop_of(block()).model, scores);
  workload.recompute = Recompute::full;
  EXPECT_DOUBLE_EQ(flop_of(block()).hardware - flop_of(block()).model, forward + scores);
}

TEST(PlanOperations, AWindowHidesKeys) {
  Workload workload = whole(config::preset("llama-3-8b"), 1000, 3);
  const auto attention = [&](CountedKeys keys) {
    for (const Operation& one : block_operations(workload, 0, 0, keys))
      if (one.kind == Operation::Kind::attention) return one.forward.flop;
    return 0.0;
  };
  const double pair = 4 * 128 * 32 * 3;  // two products of head_dim, all heads, the batch
  EXPECT_DOUBLE_EQ(attention(CountedKeys::all), pair * 1000 * 1000);
  EXPECT_DOUBLE_EQ(attention(CountedKeys::visible), pair * 1000 * 1000 / 2);
  workload.config.sliding_window = 100;
  EXPECT_DOUBLE_EQ(attention(CountedKeys::visible), pair * (100 * 1000 - 100.0 * 100 / 2));
  EXPECT_DOUBLE_EQ(attention(CountedKeys::all), pair * 1000 * 1000);
}

TEST(PlanOperations, FrozenWeightsHaveNoGradient) {
  Workload workload = whole(config::preset("llama-3-8b"), 64, 1);
  workload.frozen = {workload.config, {"model.layers.0.mlp.down_proj.weight"}};
  for (const Operation& one : block_operations(workload, 0, 0, CountedKeys::all)) {
    const bool has_weights = one.kind == Operation::Kind::product;
    EXPECT_EQ(one.weight_gradient.flop > 0, has_weights && one.name != "down_proj") << one.name;
  }
}

}  // namespace
}  // namespace shardwise::plan::operations_test
