#include "shardwise/cli/train_progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "tests/base/captured.h"
#include "tests/support/error_text.h"

namespace shardwise::cli::train_progress_test {
namespace {

using test::contains;

constexpr ProgressState kHalfWay{
    .step = 60, .begin = 20, .end = 100, .loss = 2.34567, .tokens_per_s = 12345, .elapsed_s = 80};

TEST(ProgressLine, ShowsStepLossRateAndTimeLeft) {
  EXPECT_EQ(progress_line(kHalfWay, 0), "step 60/100 loss 2.3457 12.3k tok/s 1:20 left");
  EXPECT_EQ(progress_line(kHalfWay, 10), "step 60/100 [######....] loss 2.3457 12.3k tok/s 1:20 left");
}

TEST(ProgressLine, EstimatesTimeFromTheStepsOfThisRun) {
  EXPECT_DOUBLE_EQ(seconds_left(kHalfWay), 80.0 / 40 * 40);
  ProgressState state = kHalfWay;
  state.begin = 50;
  EXPECT_DOUBLE_EQ(seconds_left(state), 80.0 / 10 * 40);
}

TEST(ProgressLine, ShowsUnknownTimeBeforeTheFirstStep) {
  ProgressState state = kHalfWay;
  state.begin = state.step;
  EXPECT_PRED2(contains, progress_line(state, 0), "? left");
}

TEST(TrainProgress, WritesTheFirstAndLastStepAsLinesToAPipe) {
  test::CapturedPipe pipe;
  base::Console console(pipe.descriptor());
  {
    TrainProgress progress(0, 100, console);
    for (int step = 1; step <= 100; ++step) progress.update(step, /*loss=*/1.5, /*tokens_per_s=*/10);
  }
  const std::string text = pipe.text();
  EXPECT_TRUE(text.starts_with("step 1/100 loss 1.5000 10 tok/s ")) << text;
  EXPECT_PRED2(contains, text, "\nstep 100/100 loss 1.5000 10 tok/s 0:00 left\n");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(TrainProgress, KeepsTheLastStepOnTheTerminalIfTheRunFails) {
  test::CapturedTerminal terminal(/*columns=*/100);
  base::Console console(terminal.descriptor());
  try {
    TrainProgress progress(0, 10, console);
    progress.update(1, 2.5, 10);
    progress.update(2, 2.25, 10);
    throw std::runtime_error("stop");
  } catch (const std::runtime_error&) {
  }
  const std::string text = terminal.text();
  EXPECT_TRUE(text.starts_with("\r\x1b[2Kstep 1/10 [####")) << text;
  EXPECT_PRED2(contains, text, "\x1b[2Kstep 2/10 [########");
  EXPECT_TRUE(text.ends_with(" left\n")) << text;
}

TEST(TrainProgress, OmitsTheBarOnANarrowTerminal) {
  test::CapturedTerminal terminal(/*columns=*/50);
  base::Console console(terminal.descriptor());
  TrainProgress progress(0, 10, console);
  progress.update(1, 2.5, 10);
  EXPECT_FALSE(contains(terminal.text(), "[#"));
}

TEST(TrainProgress, WritesNothingWithoutAStep) {
  test::CapturedPipe pipe;
  base::Console console(pipe.descriptor());
  { TrainProgress progress(0, 10, console); }
  EXPECT_EQ(pipe.text(), "");
}

}  // namespace
}  // namespace shardwise::cli::train_progress_test
