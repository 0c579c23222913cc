// FLOP of a step against published formulas and figures.
#include "shardwise/plan/operations.h"

#include <gtest/gtest.h>

#include "tests/plan/gpt.h"

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

// 72·B·L·s·h²(1 + s/6h + v/12hL), Narayanan et al. 2021, arXiv 2104.04473; the values for Korthikanti et al.
// 2022, arXiv 2205.05198, table 3.
TEST(PlanOperations, CountTheFlopOfPublishedGptModels) {
  const std::pair<PublishedGpt, double> rows[] = {
      {k22B, 1.14356e15}, {k175B, 1.41092e17}, {k530B, 1.85223e18}, {k1T, 6.42588e18}};
  for (const auto& [model, flop] : rows) {
    const Workload workload = whole(gpt(model), 2048, model.batch_size);
    const StepFlop counted = flop_of(micro_batch_operations(workload, 0, CountedKeys::all));
    EXPECT_NEAR(relative(counted.model, flop), 0, 5e-6) << model.name;  // their last digit
  }
}

// 6(N − vh) + 6Lhs per token: the embedding's rows are not multiplied, and half the keys are visible. At
// these tokens per second of a GPU, Megatron-Bridge's H100 table has 744, 719 and 737 TFLOP/s.
TEST(PlanOperations, CountTheFlopOfATokenOfLlama) {
  const std::tuple<const char*, double, double> rows[] = {
      {"llama-3.1-8b", 14451, 743.8}, {"llama-3.1-70b", 1602, 719.7}, {"llama-3.1-405b", 292, 737.0}};
  for (const auto& [preset, tokens_per_second, teraflops] : rows) {
    const config::Config c = config::preset(preset);
    const int64_t s = 8192;
    const double flop = flop_of(micro_batch_operations(whole(c, s, 1), 0, CountedKeys::visible)).model / s;
    const auto h = static_cast<double>(c.hidden_size), layers = static_cast<double>(c.num_hidden_layers);
    const auto n = static_cast<double>(config::parameter_count(c) - c.vocab_size * c.hidden_size);
    // Norm weights are parameters without products.
    EXPECT_NEAR(relative(flop, 6 * (n - h * (2 * layers + 1)) + 6 * layers * h * s), 0, 1e-12) << preset;
    EXPECT_NEAR(flop * tokens_per_second / 1e12, teraflops, 0.05) << preset;
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
  workload.frozen = {"model.layers.0.mlp.down_proj.weight"};
  for (const Operation& one : block_operations(workload, 0, 0, CountedKeys::all)) {
    const bool has_weights = one.kind == Operation::Kind::product;
    EXPECT_EQ(one.weight_gradient.flop > 0, has_weights && one.name != "down_proj") << one.name;
  }
}

}  // namespace
}  // namespace shardwise::plan::operations_test
