#include "shardwise/train/schedule.h"

#include <gtest/gtest.h>

namespace shardwise::train::schedule_test {
namespace {

TEST(Schedule, WarmsUpLinearlyThenDecaysByCosine) {
  const Schedule schedule{.peak = 1.0, .last = 0.2, .warmup = 4, .horizon = 12};
  EXPECT_DOUBLE_EQ(schedule.learning_rate(1), 0.25);
  EXPECT_DOUBLE_EQ(schedule.learning_rate(4), 1.0);
  EXPECT_DOUBLE_EQ(schedule.learning_rate(6), 0.6 + 0.4 * std::sqrt(0.5));  // cos(pi/4)
  EXPECT_DOUBLE_EQ(schedule.learning_rate(8), 0.6);
  EXPECT_DOUBLE_EQ(schedule.learning_rate(12), 0.2);
  EXPECT_DOUBLE_EQ(schedule.learning_rate(13), 0.2);
}

TEST(Schedule, HorizonIsIndependentOfStopAfter) {
  TrainOptions options;
  options.steps = 100;
  options.stop_after = 10;
  options.lr = 3e-4;
  const Schedule schedule = Schedule::of(options);
  EXPECT_EQ(schedule.horizon, 100);
  EXPECT_EQ(schedule.warmup, 10);
  EXPECT_DOUBLE_EQ(schedule.last, 3e-5);
  EXPECT_DOUBLE_EQ(schedule.learning_rate(55), (3e-4 + 3e-5) / 2);
}

TEST(Schedule, WithoutWarmupStartsOnTheCosine) {
  const Schedule schedule{.peak = 1.0, .last = 0.0, .warmup = 0, .horizon = 2};
  EXPECT_DOUBLE_EQ(schedule.learning_rate(1), 0.5);
}

TEST(Schedule, EqualRatesAreConstant) {
  const Schedule schedule{.peak = 0.1, .last = 0.1, .warmup = 0, .horizon = 7};
  for (int64_t step = 1; step <= 7; ++step) EXPECT_DOUBLE_EQ(schedule.learning_rate(step), 0.1);
}

}  // namespace
}  // namespace shardwise::train::schedule_test
