// Context and expert parallelism, and models that can only be planned: rules that hold for any formula, and
// closed forms of published models.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "shardwise/plan/block_kind.h"
#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/context_parallel.h"
#include "shardwise/plan/expert_shard.h"
#include "shardwise/plan/memory.h"
#include "shardwise/plan/one_block_stages.h"
#include "shardwise/plan/operations.h"
#include "shardwise/plan/parameters.h"
#include "shardwise/plan/training_plan.h"

namespace shardwise::plan::axes_test {
namespace {

constexpr int64_t kTokens = 4096;

TrainingTask task_of(const char* preset, int64_t ranks) {
  return {.config = config::preset_to_plan(preset),
          .ranks = ranks,
          .sequence_length = kTokens,
          .batch_size = ranks,
          .element_bytes = 2};
}

Workload workload_of(const char* preset) {
  Workload workload;
  workload.config = config::preset_to_plan(preset);
  workload.sequence_length = kTokens;
  workload.batch_size = 1;
  workload.element_bytes = 2;
  return workload;
}

/// The workload of a block like the model's last one.
Workload last_block(const Workload& workload) {
  return one_of_three_blocks(workload, workload.config.num_hidden_layers - 1,
                             kinds_of_blocks(workload).back(), 1);
}

double attention_flop(const Workload& workload, CountedKeys keys) {
  for (const Operation& operation : block_operations(workload, 0, 1, keys))
    if (operation.kind == Operation::Kind::attention) return operation.forward.flop;
  return 0;
}

TEST(ContextParallel, RanksShareTokensAndVisibleKeys) {
  for (const char* preset : {"llama-3.1-8b", "mistral-7b", "mixtral-8x7b", "deepseek-v3"}) {
    const Workload one = last_block(workload_of(preset));
    for (const int64_t cp : {2, 4, 8}) {
      Workload shared = one;
      shared.cp = cp;
      EXPECT_EQ(shared.positions() * cp, kTokens);
      EXPECT_EQ(rank_shard(shared, 0).rows * cp, rank_shard(one, 0).rows);
      for (const CountedKeys keys : {CountedKeys::all, CountedKeys::visible})
        EXPECT_DOUBLE_EQ(attention_flop(shared, keys) * static_cast<double>(cp), attention_flop(one, keys));
      EXPECT_EQ(total(saved_by_block(shared, 0, 1)) * cp, total(saved_by_block(one, 0, 1))) << preset;
    }
  }
}

// 4gd·s(c − 1)/c bytes of keys and values in 16 bits.
TEST(ContextParallel, GathersKeysAndValuesEachWay) {
  Workload workload = last_block(workload_of("llama-3.1-8b"));
  EXPECT_EQ(context_communication(workload, 0).both(), Collectives{});
  EXPECT_EQ(gathered_key_value_bytes(workload, 0), 0);
  workload.cp = 4;
  constexpr int64_t kKeysAndValues = 4 * 8 * 128 * kTokens;
  EXPECT_EQ(gathered_key_value_bytes(workload, 0), kKeysAndValues);
  const Traffic once{1, kKeysAndValues * 3 / 4};
  const Passes passes = context_communication(workload, 0);
  EXPECT_EQ(passes.forward.total(), once);
  EXPECT_EQ(passes.backward.all_gather, once);
  EXPECT_EQ(passes.backward.reduce_scatter, once);
  workload.recompute = Recompute::full;
  EXPECT_EQ(context_communication(workload, 0).backward.all_gather, (Traffic{2, 2 * once.bytes}));
}

TEST(ContextParallel, PositionsAreTwoChunksOfAnyLength) {
  Workload workload = workload_of("llama-3.1-8b");
  for (const int64_t tokens : {1, 7, 64, 100, 4097}) {
    for (const int64_t cp : {1, 2, 3, 8}) {
      workload.sequence_length = tokens;
      workload.cp = cp;
      EXPECT_GE(workload.positions() * cp, tokens);
      EXPECT_LT(workload.positions() * cp, tokens + 2 * cp);
    }
  }
}

TEST(ExpertParallel, RanksHoldAllExpertsOnceAndSendTheRest) {
  for (const char* preset : {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"}) {
    Workload workload = last_block(workload_of(preset));
    const config::Experts experts = *workload.config.experts;
    const int64_t of_one = 3 * workload.config.hidden_size * experts.intermediate_size;
    for (const int64_t ep : {1, 2, 4, 8}) {
      workload.ep = ep;
      const ExpertShard shard = expert_shard(workload);
      EXPECT_EQ(shard.experts * ep, experts.count);
      EXPECT_EQ(shard.rows, kTokens * experts.per_token);
      EXPECT_EQ(shard.sent_rows, shard.rows * (ep - 1) / ep);
      int64_t elements = 0;
      for (const LocalParameter& parameter : local_parameters(workload, 0))
        elements += parameter.is_expert ? parameter.elements : 0;
      EXPECT_EQ(elements, shard.experts * of_one) << preset;
    }
  }
}

TEST(ExpertParallel, SplitsStatesAndNotActivations) {
  const TrainingTask task = task_of("mixtral-8x7b", 8);
  TrainingPlanner planner(task, built_in_machine("h100"));
  const int64_t experts = 32 * 8 * 3 * int64_t{4096} * 14336,
                others = config::parameter_count(task.config) - experts;
  for (const int64_t ep : {1, 2, 4, 8}) {
    const MemoryByClass memory = planner.evaluate({.dp = 8, .ep = ep}).memory;
    EXPECT_EQ(memory.weights + memory.gradients + memory.optimizer, 18 * (others + experts / ep));
    EXPECT_EQ(memory.activations, planner.evaluate({.dp = 8}).memory.activations);
    const MemoryByClass split = planner.evaluate({.dp = 8, .ep = ep, .zero = ZeroStage::weights}).memory;
    EXPECT_EQ(split.weights + split.gradients + split.optimizer, 18 * (others + experts) / 8) << ep;
  }
}

TEST(ExpertParallel, TakesNoTimeOnOneRankAndMoreAcrossNodes) {
  const TrainingTask task = task_of("mixtral-8x7b", 64);
  TrainingPlanner planner(task, built_in_machine("h100"));
  const auto seconds = [&](int64_t ep) {
    return planner.evaluate({.dp = 64, .ep = ep}).time.expert_parallel;
  };
  EXPECT_EQ(seconds(1), 0);
  EXPECT_GT(seconds(2), 0);
  EXPECT_GT(seconds(8), seconds(2));
  // All of four ranks in one node, or on four.
  const Machine machine = built_in_machine("h100");
  const auto exchange = [&](int64_t stride) {
    return CollectiveTime(machine, {.ranks = 4, .stride = stride}).all_to_all(64e6);
  };
  EXPECT_GT(exchange(8), 4 * exchange(1));
  EXPECT_EQ(CollectiveTime(machine, {.ranks = 1}).all_to_all(64e6), 0);
}

// 6 FLOP for each parameter that a token passes through, and attention's.
TEST(PlannedModels, CountTheFlopOfATheirActiveParameters) {
  for (const char* preset : {"mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3"}) {
    TrainingTask task = task_of(preset, 1);
    const config::Config& c = task.config;
    const int64_t layers = c.num_hidden_layers, h = c.hidden_size;
    const auto& latent = c.latent_attention;
    // What no product reads: the embedding, norms, and the bias of scores.
    int64_t unread = c.vocab_size * h + h * (2 * layers + 1);
    if (c.qk_norm) unread += layers * 2 * c.head_dim;
    if (latent) unread += layers * (latent->q_lora_rank + latent->kv_lora_rank) + 58 * c.experts->count;
    const int64_t features = c.head_dim + (latent ? latent->v_head_dim : c.head_dim);
    const double attention = 6.0 * static_cast<double>(layers * c.num_attention_heads * features * kTokens);
    const double per_token =
        6.0 * static_cast<double>(config::active_parameter_count(c) - unread) + attention;
    EXPECT_NEAR(step_flop(task, Recompute::none, CountedKeys::all).model / kTokens / per_token, 1, 1e-12)
        << preset;
  }
}

TEST(PlannedModels, DenseBlocksOfAMixtureHaveNoExperts) {
  Workload workload = workload_of("deepseek-v3");
  workload.ep = 8;
  const std::vector<BlockKind> kinds = kinds_of_blocks(workload);
  EXPECT_FALSE(kinds[2].has_experts);
  EXPECT_TRUE(kinds[3].has_experts);
  EXPECT_FALSE(one_of_three_blocks(workload, 2, kinds[2], 1).config.experts);
  EXPECT_EQ(one_of_three_blocks(workload, 2, kinds[2], 1).config.intermediate_size, 18432);
  EXPECT_EQ(one_of_three_blocks(workload, 3, kinds[3], 1).config.intermediate_size, 2048);
}

// More ranks of an axis need no more memory of a rank.
TEST(PlannedModels, MoreRanksNeedNoMoreMemory) {
  for (const char* preset : {"llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"}) {
    const bool has_experts = config::preset_to_plan(preset).experts.has_value();
    TrainingPlanner planner(task_of(preset, 64), built_in_machine("h100"));
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      for (int64_t Degrees::*axis : {&Degrees::tp, &Degrees::cp, &Degrees::pp, &Degrees::ep}) {
        if (axis == &Degrees::ep && !has_experts) continue;
        int64_t before = std::numeric_limits<int64_t>::max();
        for (const int64_t size : {1, 2, 4, 8}) {
          Degrees degrees{.dp = 8, .recompute = recompute};
          degrees.*axis = size;
          const int64_t memory = planner.evaluate(degrees).memory.total();
          EXPECT_LE(memory, before) << preset << " " << size;
          before = memory;
        }
      }
    }
  }
}

TEST(PlannedModels, RefuseWhatHasNoMeaning) {
  Workload workload = workload_of("mixtral-8x7b");
  workload.ep = 9;
  EXPECT_THROW(workload.validate(), c10::ValueError);
  workload.ep = 0;
  EXPECT_THROW(workload.validate(), c10::ValueError);
  workload.ep = 8;
  EXPECT_NO_THROW(workload.validate());
  workload.tp = 2;
  EXPECT_NO_THROW(workload.validate());
  workload.parallelism = Parallelism::tp;
  EXPECT_THROW(workload.validate(), c10::ValueError);
  workload.tp = 1;
  EXPECT_THROW(FrozenParameters(workload.config, {"model.embed_tokens.weight"}), c10::ValueError);
  workload = workload_of("llama-3.1-8b");
  workload.ep = 2;
  EXPECT_THROW(workload.validate(), c10::ValueError);
  workload.ep = 1;
  workload.cp = 0;
  EXPECT_THROW(workload.validate(), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::plan::axes_test
