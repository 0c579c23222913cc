// Overlap of collectives with GEMMs in a run: it gives the same bits, and auto chooses the faster setting.
#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include <algorithm>

#include "shardwise/train/overlap_choice.h"
#include "tests/parallel/late_backend.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::train::overlap_test {
namespace {

using parallel::Overlap;
using testing::run_job;
using testing::Scratch;
using testing::small_options;

/// Records steps of `on_ns` and `off_ns`, except for the first step and two outliers.
OverlapChoice measured(int64_t on_ns, int64_t off_ns) {
  OverlapChoice choice("auto");
  int counts[2] = {};
  for (int step = 0; step < 13; ++step) {
    EXPECT_FALSE(choice.decision()) << step;
    const bool is_on = choice.current() == Overlap::on;
    counts[is_on] += step > 0;
    const bool is_outlier = step == 0 || step == 4 || step == 7;
    choice.record(is_outlier ? 1'000'000'000 : is_on ? on_ns : off_ns);
  }
  EXPECT_EQ(counts[0], 6);
  EXPECT_EQ(counts[1], 6);
  return choice;
}

TEST(OverlapChoice, AutoChoosesTheFasterSetting) {
  const OverlapChoice on = measured(2'000'000, 3'000'000), off = measured(3'500'000, 3'000'000);
  EXPECT_EQ(on.current(), Overlap::on);
  EXPECT_EQ(off.current(), Overlap::off);
  EXPECT_EQ(on.decision(), "overlap on: 2 ms a step with it, 3 without (medians of 6 steps each)");
  EXPECT_EQ(off.decision(), "overlap off: 3.5 ms a step with it, 3 without (medians of 6 steps each)");
}

TEST(OverlapChoice, ComparesTheMedians) {
  OverlapChoice choice("auto");
  choice.record(1);  // the warm-up
  for (int64_t on_ms = 1, off_ms = 11; !choice.decision();)
    choice.record((choice.current() == Overlap::on ? on_ms++ : off_ms++) * 1'000'000);
  EXPECT_EQ(choice.decision(), "overlap on: 4 ms a step with it, 14 without (medians of 6 steps each)");
}

TEST(OverlapChoice, OnAndOffAreFixed) {
  for (const auto& [word, overlap] : {std::pair("on", Overlap::on), {"off", Overlap::off}}) {
    OverlapChoice choice(word);
    for (int step = 0; step < 20; ++step) {
      EXPECT_EQ(choice.current(), overlap);
      choice.record(step);
    }
    EXPECT_FALSE(choice.decision());
  }
}

TEST(Overlap, GivesTheBitsOfTheRunWithoutOverlap) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.steps = 16;  // auto has chosen by then
  options.overlap = "off";
  options.tp = 3;
  const auto expected = run_job(options);
  for (const char* word : {"on", "auto"}) {
    options.overlap = word;
    ::testing::internal::CaptureStderr();
    const auto run = run_job(options);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(run.losses(), expected.losses()) << word;
    EXPECT_EQ(run.records.back().grad_norm, expected.records.back().grad_norm) << word;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), options.overlap == "auto") << log;
    EXPECT_EQ(log.starts_with("train: overlap o"), options.overlap == "auto") << log;
  }
}

TEST(Overlap, IsInTheRecord) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  const auto words = [&] {
    std::vector<std::string> recorded;
    for (const StepRecord& record : run_job(options).records) recorded.push_back(record.overlap);
    return recorded;
  };
  options.steps = 3;
  EXPECT_EQ(words(), std::vector<std::string>(3, ""));  // one rank
  options.tp = 2;
  EXPECT_EQ(words(), (std::vector<std::string>{"on", "on", "off"}));
  options.overlap = "on";
  EXPECT_EQ(words(), std::vector<std::string>(3, "on"));
  options.overlap = "auto";
  options.sequence_parallel = false;
  EXPECT_EQ(words(), (std::vector<std::string>{"on", "on", "off"}));
}

/// Returns the group as it would be over MPI: without shared memory, on a synchronous backend.
comm::Group without_heap(const comm::Group& group) {
  return group.without_symmetric_heap();
}

/// Returns the overlap setting in each step's record of a run of `options` on groups that `make_group` makes.
std::vector<std::string> recorded(const TrainOptions& options, const testing::MakeGroup& make_group) {
  std::vector<std::string> words;
  for (const StepRecord& record : run_job(options, {}, make_group).records) words.push_back(record.overlap);
  return words;
}

TEST(Overlap, AutoIsOffAndMeasuresNothingWhereNothingCanOverlap) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.tp = 2;
  options.steps = 14;  // auto would have chosen by then
  ::testing::internal::CaptureStderr();
  const auto words = recorded(options, without_heap);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(words, std::vector<std::string>(14, "off"));
  EXPECT_EQ(log,
            "train: overlap off: collectives over MPI run inside their calls, so there is nothing to "
            "overlap\n");
  options.steps = 3;
  const std::string job = testing::new_job();
  const auto late = [&](const comm::Group& group) {
    return testing::late_group(job, group.rank(), group.size());
  };
  EXPECT_EQ(recorded(options, late), (std::vector<std::string>{"on", "on", "off"}));
}

TEST(Overlap, OnIsRefusedWhereNothingCanOverlap) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.steps = 2;
  options.tp = 2;
  options.overlap = "on";
  EXPECT_EQ(test::error_text([&] { run_job(options, {}, without_heap); }),
            "train: --overlap on needs ranks that share memory, or a backend that progresses asynchronously; "
            "got 2 ranks over MPI, whose collectives run inside their calls; leave it out");
  options.overlap = "off";
  EXPECT_EQ(recorded(options, without_heap), std::vector<std::string>(2, "off"));
  options.overlap = "on";
  options.tp = 1;
  EXPECT_EQ(recorded(options, without_heap), std::vector<std::string>(2, ""));
}

TEST(Overlap, ValidationErrors) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.overlap = "yes";
  EXPECT_EQ(test::error_text([&] { validate(options); }),
            "train: --overlap must be auto, on or off; got yes");
}

/// Runs on a backend that progresses asynchronously.
testing::TestRun run_asynchronously(const TrainOptions& options) {
  const std::string job = testing::new_job();
  return run_job(options, {}, [&](const comm::Group& group) {
    return testing::late_group(job, group.rank(), group.size());
  });
}

/// Losses of the split-batch schedule differ from full batches by rounding; overlap does not change them.
TEST(SplitBatch, MatchesFullBatches) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.sequence_parallel = false;
  options.batch_size = 3;
  for (const int tp : {2, 3}) {
    options.tp = tp;
    options.overlap = "on";
    options.split_batch = false;
    const auto full = run_asynchronously(options);
    options.split_batch = true;
    const auto run = run_asynchronously(options);
    testing::expect_close(run.losses(), full.losses());
    EXPECT_NE(run.records.back().grad_norm, full.records.back().grad_norm) << "the batch was not split";
    options.overlap = "off";
    const auto without_overlap = run_asynchronously(options);
    EXPECT_EQ(run.losses(), without_overlap.losses()) << tp;
    EXPECT_EQ(run.records.back().grad_norm, without_overlap.records.back().grad_norm) << tp;
  }
}

TEST(SplitBatch, NeedsAnAsynchronousBackend) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.sequence_parallel = false;
  options.split_batch = true;
  options.tp = 2;
  EXPECT_EQ(test::error_text([&] { run_job(options); }),
            "train: --split-batch needs a backend that progresses asynchronously, such as NCCL; got 2 ranks "
            "in shared memory or over MPI; leave it out");
}

TEST(SplitBatch, ValidationErrors) {
  const Scratch scratch;
  const auto error = [&](const std::function<void(TrainOptions&)>& change) {
    TrainOptions options = small_options(scratch);
    options.split_batch = true;
    options.sequence_parallel = false;
    options.tp = 2;
    EXPECT_NO_THROW(validate(options));
    change(options);
    return test::error_text([&] { validate(options); });
  };
  EXPECT_EQ(
      error([](TrainOptions& o) { o.tp = 1; }),
      "train: --split-batch needs 2 ranks or more; got --tp 1, which has no all_reduce to overlap; leave "
      "it out");
  EXPECT_EQ(error([](TrainOptions& o) { o.sequence_parallel = true; }),
            "train: --split-batch needs TP without sequence parallelism; got TP+SP");
  EXPECT_EQ(error([](TrainOptions& o) { o.batch_size = 1; }),
            "train: --split-batch needs a batch of 2 sequences or more; got 1");
  EXPECT_EQ(error([](TrainOptions& o) { o.attention_dropout = 0.1; }),
            "train: --split-batch needs dropout 0; got 0 and 0.1 in attention");
  EXPECT_EQ(error([](TrainOptions& o) { o.recompute = "full"; }),
            "train: --split-batch needs recompute none or selective; got full");
}

}  // namespace
}  // namespace shardwise::train::overlap_test
