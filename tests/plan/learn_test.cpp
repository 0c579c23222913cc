// Corrections of a machine by own runs: recovered factors, and that a corrected machine plans corrected
// times.
#include "shardwise/plan/learn.h"

#include <gtest/gtest.h>

#include "shardwise/plan/training_plan.h"
#include "tests/plan/synthetic_machine.h"

namespace shardwise::plan::learn_test {
namespace {

/// A step that takes a times its compute and b times its communication.
ObservedStep observed(double compute, double communication, double a, double b) {
  return {compute, communication, a * compute + b * communication};
}

TEST(Learn, FindsTheTwoFactors) {
  const std::vector<ObservedStep> steps{observed(1, 0.5, 1.25, 3), observed(10, 1, 1.25, 3),
                                        observed(0.1, 0.02, 1.25, 3)};
  const Correction found = learn(steps);
  EXPECT_NEAR(found.compute, 1.25, 1e-12);
  EXPECT_NEAR(found.communication, 3, 1e-12);
  EXPECT_NEAR(mean_error(steps, found), 0, 1e-12);
  EXPECT_NEAR(mean_error({observed(1, 0, 2, 1)}, {}), 0.5, 1e-12);
}

// Relative errors: a long run does not outweigh the others. Of 1 and of 1/2 the best factor is 1.2 = (1 + 2)
// / (1 + 4) · 2.
TEST(Learn, WeighsRunsAlike) {
  for (const double scale : {1.0, 1000.0}) {
    const Correction found = learn({{1, 0, 2}, {scale, 0, scale}});
    EXPECT_NEAR(found.compute, 1.2, 1e-12) << scale;
    EXPECT_EQ(found.communication, found.compute);
  }
}

TEST(Learn, HasOneFactorWhereRunsDoNotTellTwoApart) {
  const std::vector<std::vector<ObservedStep>> cases{
      {observed(1, 0.1, 2, 2)},                          // one run
      {observed(1, 0.1, 2, 2), observed(3, 0.3, 2, 2)},  // the same part of communication
      {observed(1, 0, 2, 1), observed(5, 0, 2, 1)},      // none
  };
  for (const auto& steps : cases) {
    const Correction found = learn(steps);
    EXPECT_NEAR(found.compute, 2, 1e-9);
    EXPECT_EQ(found.communication, found.compute);
  }
  // Communication of −4 times its planned time fits best, and is no time.
  const Correction found = learn({observed(1, 0.1, 2, -4), observed(1, 0.2, 2, -4)});
  EXPECT_EQ(found.communication, found.compute);
  EXPECT_GT(found.compute, 0.5);
}

TEST(CorrectedMachine, PlansTheCorrectedTimes) {
  Machine machine = synthetic_machine(2, 1e9, 1e-4);
  machine.seconds_per_operation.value = 1e-5;
  const auto time_on = [](const Machine& m, int64_t element_bytes) {
    const TrainingTask task{.config = config::preset("tiny"),
                            .ranks = 2,
                            .sequence_length = 64,
                            .batch_size = 2,
                            .element_bytes = element_bytes};
    Degrees degrees;
    degrees.tp = 2;
    return TrainingPlanner(task, m).evaluate(degrees).time;
  };
  const auto expect_corrected = [&] {
    const Machine corrected_machine = corrected(machine, {1.5, 4}, "learned");
    EXPECT_EQ(corrected_machine.memory_bytes.source, "learned");
    EXPECT_EQ(corrected_machine.usable_bytes(), machine.usable_bytes());
    for (const int64_t bytes : {2, 4}) {
      const StepTime before = time_on(machine, bytes), after = time_on(corrected_machine, bytes);
      EXPECT_NEAR(after.compute / before.compute, 1.5, 1e-9);
      EXPECT_NEAR(after.optimizer / before.optimizer, 1.5, 1e-9);
      EXPECT_NEAR(after.tensor_parallel / before.tensor_parallel, 4, 1e-9);
    }
  };
  expect_corrected();
  const Rate collective({{100, 1e7}, {10000, 1e9}}, "measured");
  machine.collectives = MeasuredCollectives{2, collective, collective, collective};
  expect_corrected();
}

}  // namespace
}  // namespace shardwise::plan::learn_test
