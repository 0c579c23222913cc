// The largest sizes that fit, and the matrix of typical runs.
#include "shardwise/plan/largest.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "shardwise/plan/decision_matrix.h"

namespace shardwise::plan::largest_test {
namespace {

constexpr int64_t kCap = 40'000'000'000;

TrainingTask training_task() {
  return {.config = config::preset("llama-3.1-8b"),
          .ranks = 8,
          .sequence_length = 2048,
          .batch_size = 8,
          .element_bytes = 2};
}

TEST(LargestThatFits, IsFoundForEveryLimit) {
  for (int64_t most = 1; most <= 20; ++most) {
    for (int64_t limit = 0; limit <= 25; ++limit) {
      const auto fits = [&](int64_t n) {
        EXPECT_GE(n, 1);
        EXPECT_LE(n, most);
        return n <= limit;
      };
      EXPECT_EQ(largest_that_fits(most, fits), std::min(most, limit)) << most << " " << limit;
    }
  }
}

TEST(LargestTraining, FitsAndOneMoreDoesNot) {
  const TrainingTask task = training_task();
  const Machine machine = built_in_machine("h100");
  Pins pins;
  pins.recompute = Recompute::full;
  pins.zero = ZeroStage::optimizer;
  for (const Grown grown : {Grown::micro_batch, Grown::sequence}) {
    int fitting = 0;
    for (const LargestTraining& one : largest_training(task, machine, pins, kCap, grown)) {
      EXPECT_EQ(one.plan.degrees.tp * one.plan.degrees.dp, task.ranks);
      EXPECT_EQ(one.plan.degrees.zero, *pins.zero);
      const auto memory_of = [&](int64_t size) {
        TrainingTask grown_task = task;
        Degrees degrees = one.plan.degrees;
        if (grown == Grown::sequence) grown_task.sequence_length = size;
        degrees.micro_batch_size = grown == Grown::sequence ? 1 : size;
        grown_task.batch_size = degrees.dp * degrees.micro_batch_size;
        return TrainingPlanner(grown_task, machine).evaluate(degrees).memory.total();
      };
      const bool is_at_most = grown == Grown::sequence && one.size == task.config.max_position_embeddings;
      if (!is_at_most) {
        EXPECT_GT(memory_of(one.size + 1), kCap);
      }
      if (one.size == 0) {
        EXPECT_EQ(one.tokens_per_second, 0);
        continue;
      }
      ++fitting;
      EXPECT_EQ(one.plan.memory.total(), memory_of(one.size));
      EXPECT_LE(memory_of(one.size), kCap);
      EXPECT_GT(one.tokens_per_second, 0);
    }
    EXPECT_GT(fitting, 1);
  }
}

TEST(LargestTraining, GrowsWithRanksAndSequenceParallelism) {
  int64_t without = 0, with = 0;
  for (const LargestTraining& one :
       largest_training(training_task(), built_in_machine("h100"), {}, {}, Grown::micro_batch)) {
    int64_t& before = one.plan.degrees.has_sequence_parallel ? with : without;
    EXPECT_GE(one.size, before);
    before = one.size;
  }
  EXPECT_GT(with, without);
}

TEST(LargestInference, FitsAndAnotherTextPerReplicaDoesNot) {
  InferenceTask task{
      .config = config::preset("llama-3.1-8b"), .ranks = 4, .prompt_tokens = 1000, .new_tokens = 24};
  const Machine machine = built_in_machine("h100");
  const std::vector<LargestInference> all = largest_inference(task, machine, {}, kCap);
  ASSERT_EQ(all.size(), 3u);
  for (const LargestInference& one : all) {
    ASSERT_GT(one.texts, 0);
    EXPECT_EQ(one.texts % one.plan.degrees.replicas, 0);
    const auto memory_of = [&](int64_t texts) {
      task.texts = texts;
      return evaluate(task, one.plan.degrees, machine).memory.total();
    };
    EXPECT_LE(memory_of(one.texts), kCap);
    EXPECT_GT(memory_of(one.texts + one.plan.degrees.replicas), kCap);
  }
  EXPECT_GT(all[2].texts, all[0].texts);  // weights are held once instead of four times
  const std::vector<LargestInference> none = largest_inference(task, machine, 1, 10'000'000'000);
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].texts, 0);
}

// What is fastest is at least as fast as what is advised, because the search tries it.
TEST(DecisionMatrix, HasAPlanForEveryRunAndNoAdviceIsFaster) {
  const std::vector<Decision> decisions = decision_matrix();
  EXPECT_EQ(decisions.size(), 12u);
  for (const Decision& one : decisions) {
    ASSERT_TRUE(one.fastest) << one.model;
    EXPECT_FALSE(one.source.empty());
    if (!one.advised) continue;
    EXPECT_EQ(one.advised->degrees.tp, one.advice.tp);
    EXPECT_EQ(one.advised->degrees.ep, one.advice.ep);
    EXPECT_LE(one.fastest->time.total(), one.advised->time.total()) << one.model;
  }
}

}  // namespace
}  // namespace shardwise::plan::largest_test
