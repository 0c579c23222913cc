// The search over degrees: what it tries, how it ranks, and the reasons it gives.
#include "shardwise/plan/search.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <set>

namespace shardwise::plan::search_test {
namespace {

TrainingTask task_of(const char* preset, int64_t ranks, int64_t batch_size) {
  return {.config = config::preset_to_plan(preset),
          .ranks = ranks,
          .sequence_length = 1024,
          .batch_size = batch_size,
          .element_bytes = 2};
}

SearchResult found(const TrainingTask& task, const Pins& pins = {}, std::optional<int64_t> cap = {}) {
  return search(task, built_in_machine("h100"), pins, cap);
}

std::string only_reason(const SearchResult& result) {
  EXPECT_TRUE(result.plans.empty());
  std::set<std::string> reasons;
  for (const Refused& refused : result.refused) reasons.insert(refused.reason);
  EXPECT_EQ(reasons.size(), 1u);
  return reasons.empty() ? "" : *reasons.begin();
}

TEST(PlanSearch, TriesEveryCombinationOfAxesOnceAndSortsByTime) {
  const TrainingTask task = task_of("llama-3.1-8b", 16, 16);
  const SearchResult result = found(task);
  std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> axes;
  const auto add = [&](const Degrees& d) {
    EXPECT_EQ(d.tp * d.cp * d.pp * d.dp, 16);
    EXPECT_EQ(d.ep, 1);
    EXPECT_EQ(d.micro_batches(task.batch_size) * d.micro_batch_size * d.dp, task.batch_size);
    axes.insert({d.tp, d.cp, d.pp, d.dp});
  };
  double before = 0;
  for (const TrainingPlan& plan : result.plans) {
    add(plan.degrees);
    EXPECT_GE(plan.time.total(), before);
    before = plan.time.total();
    EXPECT_LE(plan.memory.total(), built_in_machine("h100").usable_bytes());
  }
  for (const Refused& refused : result.refused) add(refused.degrees);
  EXPECT_EQ(axes.size(), 35u);  // four factors of 2⁴
  EXPECT_FALSE(result.plans.empty());
  EXPECT_FALSE(result.refused.empty());
}

TEST(PlanSearch, PlansSplitBatchesIfTheyAreWanted) {
  const TrainingTask task = task_of("llama-3.1-8b", 16, 32);
  for (const TrainingPlan& plan : found(task).plans) EXPECT_FALSE(plan.degrees.splits_batch);
  const SearchResult result = found(task, {.split_batch = true});
  EXPECT_FALSE(result.plans.empty());
  for (const TrainingPlan& plan : result.plans) {
    const Degrees& d = plan.degrees;
    EXPECT_TRUE(d.splits_batch && d.tp > 1 && !d.has_sequence_parallel && d.micro_batch_size > 1);
    EXPECT_NE(d.recompute, Recompute::full);
  }
  const SearchResult alone = found(task, {.tp = 1, .split_batch = true});
  EXPECT_EQ(only_reason(alone), "split batches need tp 2 or more");
}

/// What a half of the batch hides is less than the time that its smaller products and collectives cost more.
TEST(PlanSearch, SplitBatchesHideCollectivesAndKeepFewerBuffers) {
  const TrainingTask task = task_of("llama-3.1-70b", 64, 128);
  TrainingPlanner planner(task, built_in_machine("a100"));
  int hidden = 0;
  for (const int64_t tp : {2, 4, 8}) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective}) {
      for (const int64_t sequences : {2, 3, 8}) {
        Degrees whole{.tp = tp, .dp = 64 / tp, .has_sequence_parallel = false, .micro_batch_size = sequences};
        whole.recompute = recompute;
        Degrees split = whole;
        split.splits_batch = true;
        const TrainingPlan a = planner.evaluate(whole), b = planner.evaluate(split);
        EXPECT_EQ(b.memory.activations, a.memory.activations);
        EXPECT_LE(b.memory.buffers, a.memory.buffers);
        EXPECT_GE(b.time.compute, a.time.compute);
        EXPECT_EQ(b.flop.model, a.flop.model);
        hidden += b.time.tensor_parallel < 0.5 * a.time.tensor_parallel;
      }
    }
  }
  EXPECT_GT(hidden, 9);
}

TEST(PlanSearch, RefusesSplitBatchesThatCannotBe) {
  const auto refused = [](const char* preset, const char* machine, const Pins& pins) {
    EXPECT_THROW(search(task_of(preset, 16, 32), built_in_machine(machine), pins, {}), c10::ValueError);
  };
  refused("mixtral-8x7b", "h100", {.split_batch = true});
  refused("llama-3.1-8b", "h100", {.micro_batch_size = 1, .split_batch = true});
  refused("llama-3.1-8b", "h100", {.recompute = Recompute::full, .split_batch = true});
  Machine shared = built_in_machine("h100");
  shared.shares_memory = true;
  EXPECT_THROW(search(task_of("llama-3.1-8b", 16, 32), shared, {.split_batch = true}, {}), c10::ValueError);
}

TEST(PlanSearch, KeepsPins) {
  Pins pins;
  pins.tp = 4;
  pins.zero = ZeroStage::optimizer;
  pins.recompute = Recompute::full;
  pins.micro_batch_size = 3;
  const SearchResult result = found(task_of("llama-3.1-8b", 16, 12), pins);
  EXPECT_FALSE(result.plans.empty());
  for (const TrainingPlan& plan : result.plans) {
    EXPECT_EQ(plan.degrees.tp, 4);
    EXPECT_EQ(plan.degrees.zero, ZeroStage::optimizer);
    EXPECT_EQ(plan.degrees.recompute, Recompute::full);
    EXPECT_EQ(plan.degrees.micro_batch_size, 3);
  }
}

TEST(PlanSearch, GivesOneReason) {
  Pins pins;
  pins.tp = 64;
  EXPECT_EQ(only_reason(found(task_of("llama-3.1-8b", 64, 64), pins)),
            "tp 64 is more than the 32 query heads");
  pins = {};
  pins.pp = 64;
  EXPECT_EQ(only_reason(found(task_of("llama-3.1-8b", 64, 64), pins)), "pp 64 is more than the 32 blocks");
  pins = {};
  pins.dp = 16;
  EXPECT_EQ(only_reason(found(task_of("llama-3.1-8b", 16, 24), pins)),
            "dp 16 does not divide the batch of 24 sequences");
  pins.micro_batch_size = 2;
  EXPECT_EQ(only_reason(found(task_of("llama-3.1-8b", 16, 48), pins)),
            "a micro-batch of 2 does not divide the 3 sequences of a replica");
  pins = {};
  pins.cp = 1024;
  EXPECT_EQ(only_reason(found(task_of("llama-3.1-8b", 1024, 1024), pins)),
            "cp 1024 has more than half as many ranks as a sequence has tokens, 1024");
  pins = {};
  pins.pp = 4;
  pins.dp = 4;
  pins.zero = ZeroStage::weights;
  EXPECT_EQ(only_reason(found(task_of("llama-3.1-8b", 16, 16), pins)).find("zero 2 and 3 need pp 1"), 0u);
  const SearchResult none = found(task_of("llama-3.1-405b", 1, 1));
  EXPECT_TRUE(none.plans.empty());
  for (const Refused& refused : none.refused) {
    EXPECT_EQ(refused.reason.find("stage 0 needs "), 0u) << refused.reason;
    EXPECT_NE(refused.reason.find("(states 7305."), std::string::npos)
        << refused.reason;  // 18 bytes a parameter
  }
}

TEST(PlanSearch, TriesEveryNumberOfExpertRanks) {
  TrainingTask task = task_of("mixtral-8x7b", 16, 16);
  Pins pins;
  pins.pp = 2;
  pins.cp = 1;
  std::set<std::pair<int64_t, int64_t>> tried;
  const SearchResult result = found(task, pins);
  for (const TrainingPlan& plan : result.plans) tried.insert({plan.degrees.tp, plan.degrees.ep});
  for (const Refused& refused : result.refused) tried.insert({refused.degrees.tp, refused.degrees.ep});
  EXPECT_EQ(tried.size(), 16u);  // tp 1, 2, 4, 8 and ep 1, 2, 4, 8 of the 8 ranks of a stage
  for (const TrainingPlan& plan : result.plans) EXPECT_TRUE(plan.degrees.has_sequence_parallel);
  pins.ep = 16;
  EXPECT_THROW(found(task, pins), c10::ValueError);
  pins.ep = 3;
  EXPECT_EQ(only_reason(found(task, pins)), "ep 3 does not divide the 8 ranks of a stage");
  task = task_of("llama-3.1-8b", 16, 16);
  EXPECT_THROW(found(task, pins), c10::ValueError);
}

// Sizes of micro-batches that were not tried do not fit.
TEST(PlanSearch, LeavesOutOnlyWhatDoesNotFit) {
  const TrainingTask task = task_of("llama-3.1-8b", 8, 64);
  constexpr int64_t kCap = 30'000'000'000;
  int left_out = 0;
  for (const Refused& refused : found(task, {}, kCap).refused) {
    if (refused.reason.find("saves no less than") == std::string::npos) continue;
    ++left_out;
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::weights}) {
        Degrees degrees = refused.degrees;
        degrees.recompute = recompute;
        degrees.zero = zero;
        if (degrees.pp > 1 && zero > ZeroStage::optimizer) continue;
        TrainingPlanner planner(task, built_in_machine("h100"));
        EXPECT_GT(planner.evaluate(degrees).memory.total(), kCap) << refused.reason;
      }
    }
  }
  EXPECT_GT(left_out, 0);
}

TEST(PlanSearch, LargerMemoryAllowsEveryPlanOfASmallerOne) {
  const TrainingTask task = task_of("llama-3.1-8b", 8, 8);
  size_t before = 0;
  for (const int64_t gb : {10, 20, 40, 80, 160, 1000}) {
    const SearchResult result = found(task, {}, gb * 1'000'000'000);
    EXPECT_GE(result.plans.size(), before) << gb;
    before = result.plans.size();
  }
  EXPECT_TRUE(found(task, {}, 10'000'000).plans.empty());
}

TEST(PlanSearch, RefusesBadInput) {
  const TrainingTask good = task_of("llama-3.1-8b", 8, 8);
  for (int64_t TrainingTask::*size :
       {&TrainingTask::ranks, &TrainingTask::batch_size, &TrainingTask::sequence_length}) {
    TrainingTask bad = good;
    bad.*size = 0;
    EXPECT_THROW(found(bad), c10::ValueError);
  }
  Pins pins;
  pins.tp = 3;
  EXPECT_THROW(found(good, pins), c10::ValueError);
  pins.tp = 0;
  EXPECT_THROW(found(good, pins), c10::ValueError);
  EXPECT_THROW(found(good, {}, 0), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::plan::search_test
