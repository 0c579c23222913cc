// Ranks that read different checkpoints or texts with the same names and sizes.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "shardwise/checkpoint/directories.h"
#include "shardwise/checkpoint/run_lock.h"
#include "shardwise/comm/collective_backend.h"
#include "shardwise/train/trainer.h"
#include "tests/support/error_text.h"
#include "tests/support/without_rights.h"
#include "tests/train/runs.h"

namespace shardwise::testing::start_test {
namespace {

namespace fs = std::filesystem;
using train::Job;

/// Checks that both ranks throw if one constructs its job before `change` and one after it.
void expect_change_is_detected(const train::TrainOptions& options, const std::function<void()>& change) {
  const Job before(options);
  change();
  const Job after(options);
  on_ranks(2, [&](const comm::Group& group) {
    const Job& job = group.rank() == 0 ? before : after;
    const std::string text =
        test::error_text<base::CollectiveError>([&] { train::Trainer(job, train::one_replica(group)); });
    EXPECT_PRED2(test::contains, text, "must start from the same checkpoint and text");
  });
  on_ranks(2, [&](const comm::Group& group) {
    EXPECT_NO_THROW(train::Trainer(after, train::one_replica(group)));
  });
}

TEST(Start, DetectsAReplacedCheckpoint) {
  const Scratch scratch;
  train::TrainOptions options = small_options(scratch);
  options.save = scratch / "first";
  run_job(options);
  options.save = scratch / "second";
  options.lr = options.lr / 2;
  run_job(options);
  options.save.reset();
  options.steps = 20;
  options.tp = 2;
  options.resume = scratch / "first";
  expect_change_is_detected(options, [&] {
    fs::remove_all(scratch / "first/step-6");
    fs::rename(scratch / "second/step-6", scratch / "first/step-6");
  });
}

// A save that was killed between the two renames at its end.
TEST(Start, RepeatsASaveThatWasKilledBeforeItMovedTheLink) {
  const Scratch scratch;
  train::TrainOptions options = small_options(scratch);
  const std::vector<double> full_run = run_job(options).losses();
  options.save = scratch / "saved";
  options.save_every = 2;
  options.stop_after = 4;
  run_job(options);
  fs::remove(scratch / "saved/latest");
  fs::create_directory_symlink("step-2", scratch / "saved/latest");
  options.resume = scratch / "saved";
  options.stop_after.reset();
  EXPECT_EQ(run_job(options).losses(), std::vector<double>(full_run.begin() + 2, full_run.end()));
  EXPECT_EQ(fs::read_symlink(scratch / "saved/latest"), "step-6");
  options.resume = scratch / "saved/step-4";
  options.stop_after = 5;
  EXPECT_PRED2(test::contains, test::error_text([&] { Job job(options); }),
               "must not contain steps after 4, where this run starts; got step-6");
}

// They have earlier steps than those that this run would save, so pruning would delete them.
TEST(Start, DoesNotSaveAmongTheCheckpointsOfAnotherRun) {
  const Scratch scratch;
  train::TrainOptions options = small_options(scratch);
  options.save_every = 2;
  for (const char* run : {"first", "second"}) {
    options.save = scratch / run;
    options.stop_after = 4;
    run_job(options);
  }
  options.stop_after.reset();
  options.resume = scratch / "first";
  const std::string error = test::error_text([&] { Job job(options); });
  EXPECT_PRED2(test::contains, error, "must have no checkpoints of another run than that of --resume");
  EXPECT_PRED2(test::contains, error, "which saving would delete; got step-");
  EXPECT_TRUE(fs::exists(scratch / "second/step-2"));
  options.save = scratch / "new";
  EXPECT_EQ(run_job(options).records.size(), 2u);
}

/// Checks that the ranks of a new run that saves to `scratch`/saved all throw `named`, if `change` happens
/// between the job's checks and the lock of that directory.
void expect_refused_at_the_lock(const std::function<void(const Scratch& scratch)>& change,
                                const std::string& named) {
  for (const int tp : {1, 2}) {
    const Scratch scratch;
    train::TrainOptions options = small_options(scratch);
    options.save = scratch / "saved";
    options.tp = tp;
    const Job job(options);
    change(scratch);
    on_ranks(tp, [&](const comm::Group& group) {
      const auto run = [&] { train::run(job, train::one_replica(group), [](const train::StepRecord&) {}); };
      EXPECT_PRED2(test::contains, test::error_text<base::CollectiveError>(run), named);
    });
  }
}

// Pruning would have deleted the other run's checkpoint.
TEST(Start, RefusesStepsThatAnotherRunSavedBeforeItReleasedTheLock) {
  expect_refused_at_the_lock(
      [](const Scratch& scratch) { fs::create_directories(scratch / "saved/step-400"); },
      "must not contain steps after 0, where this run starts; got step-400");
}

TEST(Start, EveryRankReportsALockThatCannotBeOpened) {
  expect_refused_at_the_lock([](const Scratch& scratch) { fs::create_directory(scratch / "saved/.lock"); },
                             "/saved/.lock: Is a directory");
}

// A rank that waits longer for the lock than its peers wait for it would make them time out.
TEST(Start, TheWaitForTheLockIsShorterThanTheTimeout) {
  const Scratch scratch;
  train::TrainOptions options = small_options(scratch);
  options.save = scratch / "saved";
  options.tp = 2;
  const Job job(options);
  const checkpoint::RunLock lock(*options.save);
  on_ranks(2, [&](const comm::Group& group) {
    const auto usual = group.backend()->timeout();
    group.backend()->set_timeout(checkpoint::RunLock::kMaxWait / 2);
    const auto run = [&] { train::run(job, train::one_replica(group), [](const train::StepRecord&) {}); };
    EXPECT_PRED2(test::contains, test::error_text<base::CollectiveError>(run),
                 "one run at a time may save here");
    group.backend()->set_timeout(usual);
  });
}

TEST(Start, RemovesWhatAKilledSaveLeftBehind) {
  const Scratch scratch;
  train::TrainOptions options = small_options(scratch);
  options.save = scratch / "saved";
  const fs::path left = checkpoint::temporary_path(*options.save, /*step=*/3, /*unique=*/42);
  fs::create_directories(left);
  const Job job(options);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::is_directory(*options.save));
}

TEST(Start, FingerprintIgnoresFilesThatNoRunReads) {
  const Scratch scratch;
  train::TrainOptions options = small_options(scratch);
  options.save = scratch / "saved";
  run_job(options);
  options.save.reset();
  options.steps = 20;
  fs::create_symlink("nowhere", scratch / "saved/step-6/notes.json");
  std::string blanks;  // a different size each time, since the modification time may not change
  for (auto* starting_point : {&options.resume, &options.init}) {
    *starting_point = scratch / "saved";
    const Job job(options);
    scratch.put("saved/step-6/README.md", "later");
    EXPECT_EQ(job.fingerprint_now(), job.fingerprint());
    scratch.put("saved/step-6/config.json", config::to_json(job.config()) + (blanks += ' '));
    EXPECT_NE(job.fingerprint_now(), job.fingerprint());
    starting_point->reset();
  }
}

TEST(Start, DetectsAModifiedText) {
  const Scratch scratch;
  train::TrainOptions options = small_options(scratch);
  options.tp = 2;
  expect_change_is_detected(options, [&] {
    std::string text = sample_text();
    text[7] = '!';
    scratch.put("text", text);
  });
}

TEST(Start, RefusesADirectoryThatCannotBeListed) {
  const Scratch scratch;
  train::TrainOptions options = small_options(scratch);
  options.save = scratch / "saved";
  fs::create_directory(*options.save);
  fs::permissions(*options.save, fs::perms::owner_write | fs::perms::owner_exec);
  fs::permissions(scratch.path(), fs::perms(0755));
  const test::WithoutRights nobody;
  EXPECT_PRED2(test::contains, test::error_text([&] { Job job(options); }),
               "train: --save must be a readable and writable directory; got: ");
}

}  // namespace
}  // namespace shardwise::testing::start_test
