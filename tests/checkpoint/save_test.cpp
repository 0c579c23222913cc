// The files that a save writes, and those that it preserves if it fails or its process is killed.
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "shardwise/base/clock.h"
#include "shardwise/base/files.h"
#include "shardwise/checkpoint/pending_save.h"
#include "shardwise/comm/collective_backend.h"
#include "tests/checkpoint/fixture.h"
#include "tests/launch/program.h"
#include "tests/support/deadline.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/small_files.h"
#include "tests/support/without_rights.h"

namespace shardwise::testing::save_test {
namespace {

using test::contains;
using Names = std::vector<std::string>;

/// Waits for a condition; fails the test if it does not hold in time.
void wait_until(const std::function<bool()>& holds) {
  for (const base::Stopwatch watch; !holds() && watch.seconds() < scaled_s(kStartLimit);) ::usleep(200);
  ASSERT_TRUE(holds());
}

/// Returns the first moment of a parameter of an fp32 model, which has two tensors of state per parameter.
at::Tensor& first_moment_of(RankState& rank, size_t parameter) {
  return rank.state.tensors.at(2 * parameter).local;
}

class Save : public ::testing::Test {
 protected:
  void save(int64_t step, int64_t keep = 0, int ranks = 1) const {
    save_full(dir_.path(), config_, full_, ranks, step, keep);
  }
  /// Returns whether the directory that `latest` points to is complete and contains this test's tensors.
  bool latest_is_complete() const {
    const auto directory = checkpoint::resolve(dir_.path());
    checkpoint::check(directory, /*needs_state=*/true);
    RankState rank(config_, comm::Group(), full_);
    checkpoint::load_weights(directory, rank.weights);
    checkpoint::load_state(directory, rank.state, rank.weights);
    return differing(rank, full_).empty();
  }
  std::string latest() const { return std::filesystem::read_symlink(dir_ / "latest"); }

  const config::Config config_ = uneven_config();
  const FullState full_ = full_state(config_, at::kFloat, /*seed=*/1);
  const TemporaryDirectory dir_;
};

TEST_F(Save, WritesTheStepDirectoryAndLatest) {
  save(4, /*keep=*/0, /*ranks=*/2);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
  EXPECT_EQ(names_in(dir_ / "step-4"), (Names{"config.json", "model.safetensors", "optimizer.safetensors"}));
  EXPECT_EQ(latest(), "step-4");
}

TEST_F(Save, CreatesParentDirectories) {
  save_full(dir_ / "a/b", config_, full_, /*ranks=*/1, /*step=*/1);
  EXPECT_EQ(names_in(dir_ / "a/b"), (Names{"latest", "step-1"}));
}

TEST_F(Save, CreatesTheDirectoriesOfAuxiliaryFiles) {
  on_ranks(2, [&](const comm::Group& group) {
    RankState rank(config_, group, full_);
    rank.state.step = 1;
    checkpoint::save(
        dir_.path(), rank.weights, rank.state, /*keep=*/0,
        {{"additional_chat_templates/a.jinja", "a"}, {"additional_chat_templates/b.jinja", "b"}});
  });
  for (const char* name : {"a", "b"})
    EXPECT_EQ(test::contents(dir_ / ("step-1/additional_chat_templates/" + std::string(name) + ".jinja")),
              name);
}

TEST_F(Save, KeepsTheNewestSteps) {
  for (const int64_t step : {9, 10, 11}) save(step, /*keep=*/2);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-10", "step-11"}));
  save(12, /*keep=*/1);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-12"}));
  for (const int64_t step : {13, 14}) save(step, /*keep=*/0);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-12", "step-13", "step-14"}));
}

TEST_F(Save, APendingSaveHasTheValuesOfItsBeginning) {
  on_ranks(2, [&](const comm::Group& group) {
    RankState rank(config_, group, full_);
    fill_(rank, full_);
    rank.state.step = 4;
    checkpoint::PendingSave pending(dir_.path(), rank.weights, rank.state, /*keep=*/0);
    fill_(rank, full_state(config_, at::kFloat, /*seed=*/99));
    rank.state.step = 5;
    EXPECT_EQ(pending.target(), dir_ / "step-4");
    EXPECT_FALSE(std::filesystem::exists(pending.target()));
    while (!pending.is_synced()) ::usleep(1000);
    EXPECT_FALSE(std::filesystem::exists(pending.target())) << "only finish() publishes";
    pending.finish();
  });
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
  EXPECT_TRUE(latest_is_complete());
}

TEST_F(Save, APendingSaveThatIsNotFinishedLeavesNothing) {
  save(4);
  on_ranks(2, [&](const comm::Group& group) {
    RankState rank(config_, group, full_);
    rank.state.step = 5;
    const checkpoint::PendingSave pending(dir_.path(), rank.weights, rank.state, /*keep=*/1);
  });
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
  EXPECT_TRUE(latest_is_complete());
}

TEST_F(Save, RejectsANegativeNumberToKeep) {
  EXPECT_EQ(test::error_text([&] { save(4, /*keep=*/-1); }), "save: keep must be 0 (all) or more; got -1");
  EXPECT_EQ(names_in(dir_.path()), Names{});
}

TEST_F(Save, PrunesLaterStepsOfAnAbandonedRunFirst) {
  for (const int64_t step : {10, 30, 40}) save(step);
  ::testing::internal::CaptureStderr();
  save(20, /*keep=*/2);
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  for (const char* step :
       {"removes step 30, which is after step 20", "removes step 40, which is after step 20"})
    EXPECT_PRED2(contains, warnings, step);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-10", "step-20"}));
  EXPECT_EQ(latest(), "step-20");
}

TEST_F(Save, PrunesOnlyStepDirectories) {
  dir_.put("step-1/notes.txt", "a directory of the user's is a step by its name alone");
  dir_.put("step-2x/keep", "");
  dir_.put("step-", "");
  dir_.put("step-3", "a file");
  save(4, /*keep=*/1);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-", "step-2x", "step-3", "step-4"}));
}

TEST_F(Save, ReplacesTheSameStep) {
  const FullState other = full_state(config_, at::kFloat, /*seed=*/99);
  save_full(dir_.path(), config_, other, /*ranks=*/2, /*step=*/4);
  EXPECT_FALSE(latest_is_complete());
  save(4, /*keep=*/1, /*ranks=*/3);
  EXPECT_TRUE(latest_is_complete());
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
}

TEST_F(Save, RemovesOnlyStaleTemporaries) {
  dir_.put(".step-7.tmp-4711/model.safetensors", "half");
  dir_.put(".step-8.tmp-4712/model.safetensors", "being written");
  dir_.put(".step-9.tmp/mine", "");
  dir_.put("latest.tmp8", "a file of the user's");
  std::filesystem::create_symlink("step-7", dir_ / "latest.tmp4711");
  const int live = ::open((dir_ / ".step-8.tmp-4712").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(live, LOCK_EX | LOCK_NB), 0);
  save(4);
  ::close(live);
  EXPECT_EQ(names_in(dir_.path()),
            (Names{".step-8.tmp-4712", ".step-9.tmp", "latest", "latest.tmp8", "step-4"}));
}

// Where a file system has no locks, a killed save's directory stays. If names had process ids, a later
// process with the same one could not save.
TEST_F(Save, SucceedsBesideALockedTemporaryWithThisProcesssId) {
  const std::string name = ".step-4.tmp-" + std::to_string(getpid());
  dir_.put(name + "/model.safetensors", "half");
  const base::Fd live(::open((dir_ / name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(live.get(), LOCK_EX | LOCK_NB), 0);
  save(4);
  EXPECT_EQ(names_in(dir_.path()), (Names{name, "latest", "step-4"}));
}

// If rank 0 waited longer for the lock than its peers wait for it, they would time out.
TEST_F(Save, TheWaitForALockIsShorterThanTheTimeout) {
  const base::Fd lock(::open(dir_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  on_ranks(2, [&](const comm::Group& group) {
    RankState rank(config_, group, full_);
    const auto usual = group.backend()->timeout();
    group.backend()->set_timeout(std::chrono::seconds(8));
    const std::string error =
        test::error_text<c10::Error>([&] { checkpoint::save(dir_.path(), rank.weights, rank.state, 1); });
    EXPECT_PRED2(
        contains, error,
        group.rank() == 0 ? "another process has had its lock for 2.0 s" : "got a failure on rank 0");
    group.backend()->set_timeout(usual);
  });
  EXPECT_EQ(names_in(dir_.path()), Names{});
}

TEST_F(Save, FailureOnOneRankFailsAllAndKeepsTheOldCheckpoint) {
  save(4, /*keep=*/0, /*ranks=*/3);
  for (int broken = 0; broken < 3; ++broken) {
    std::vector<std::string> errors(3);
    on_ranks(3, [&](const comm::Group& group) {
      RankState rank(config_, group, full_);
      rank.state.step = 5;
      if (group.rank() == broken) first_moment_of(rank, /*parameter=*/2) = at::full({3}, 0, at::kFloat);
      errors[group.rank()] = test::error_text<c10::Error>(
          [&] { checkpoint::save(dir_.path(), rank.weights, rank.state, /*keep=*/1); });
    });
    for (int rank = 0; rank < 3; ++rank) {
      const std::string part = rank == broken
                                   ? "q_proj.weight.exp_avg must be contiguous and have the parameter's"
                                   : "got a failure on rank " + std::to_string(broken);
      EXPECT_PRED2(contains, errors[rank], part);
    }
    EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
    EXPECT_TRUE(latest_is_complete());
  }
}

TEST_F(Save, UnsupportedDtypeOnOneRankFailsAll) {
  on_ranks(2, [&](const comm::Group& group) {
    RankState rank(config_, group, full_);
    if (group.rank() == 1) first_moment_of(rank, /*parameter=*/0) = at::full({1}, 0, at::kInt);
    const std::string text = test::error_text<c10::Error>(
        [&] { checkpoint::save(dir_.path(), rank.weights, rank.state, /*keep=*/0); });
    EXPECT_PRED2(contains, text,
                 group.rank() == 1 ? "must be fp64, fp32, bf16 or fp16; got Int" : "on rank 1");
  });
  EXPECT_EQ(names_in(dir_.path()), Names{});
}

TEST_F(Save, FileInPlaceOfTheDirectoryIsNamed) {
  const std::string file = dir_.put("taken", "");
  const std::string text = test::error_text<base::FileError>([&] { save_full(file, config_, full_, 1, 1); });
  EXPECT_PRED2(contains, text, file + ": Not a directory");
}

// Such as a write-protected one. The run goes on.
TEST_F(Save, AStepThatCannotBeRemovedStaysWithAWarning) {
  save(1);
  const std::filesystem::path protected_step = dir_ / "step-1";
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::all);
  std::filesystem::permissions(protected_step, std::filesystem::perms(0555));
  const std::filesystem::path left = dir_ / ".step-1.tmp-42";
  std::filesystem::copy(protected_step, left);
  std::filesystem::permissions(left, std::filesystem::perms(0555));
  const auto warning = [](const std::filesystem::path& path) {
    return "warning: remove " + path.string() + ": Permission denied [SW0366]\n";
  };
  ::testing::internal::CaptureStderr();
  on_ranks(1, [&](const comm::Group& group) {
    RankState rank(config_, group, full_);
    fill_(rank, full_);
    rank.state.step = 2;
    const test::WithoutRights nobody;
    checkpoint::save(dir_.path(), rank.weights, rank.state, /*keep=*/1);
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), warning(left) + warning(protected_step));
  EXPECT_EQ(names_in(dir_.path()), (Names{".step-1.tmp-42", "latest", "step-1", "step-2"}));
  EXPECT_TRUE(latest_is_complete());
  for (const auto& path : {protected_step, left})
    std::filesystem::permissions(path, std::filesystem::perms::all);
}

TEST_F(Save, FullDiskIsReportedAndKeepsTheOldCheckpoint) {
  save(4);
  std::vector<std::string> errors(2);
  {
    const test::SmallFiles small(20'000);
    on_ranks(2, [&](const comm::Group& group) {
      RankState rank(config_, group, full_);
      rank.state.step = 5;
      errors[group.rank()] = test::error_text<c10::Error>(
          [&] { checkpoint::save(dir_.path(), rank.weights, rank.state, /*keep=*/1); });
    });
  }
  EXPECT_PRED2(contains, errors[0], dir_ / ".step-5.tmp-");
  EXPECT_PRED2(contains, errors[0], "/model.safetensors: File too large");
  EXPECT_PRED2(contains, errors[1],
               "save " + dir_ / "step-5: must succeed on every rank; got a failure on rank 0");
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
  EXPECT_TRUE(latest_is_complete());
}

TEST_F(Save, KilledAtAnyTimeLeavesACompleteCheckpoint) {
  save(1, /*keep=*/1);
  int hit_saves = 0;
  const auto kill_and_check = [&](Program& saves) {
    saves.send(SIGKILL);
    saves.wait();
    hit_saves += names_in(dir_.path()).front().starts_with(".step-");
    ASSERT_TRUE(latest_is_complete()) << saves.errors();
  };
  for (int kill_after_us = 0; kill_after_us < 12'000; kill_after_us += 800) {
    SCOPED_TRACE("killed after us: " + std::to_string(kill_after_us));
    Program saves({ENDLESS_SAVES, dir_.path()});
    wait_until([&] { return !saves.output().empty(); });
    std::this_thread::sleep_for(std::chrono::microseconds(kill_after_us));
    kill_and_check(saves);
  }
  EXPECT_GT(hit_saves, 0);
  // The last kill is after a save has completed, however long that takes.
  Program saves({ENDLESS_SAVES, dir_.path()});
  wait_until([&] { return checkpoint::resolve(dir_.path()) != dir_ / "step-1"; });
  kill_and_check(saves);
  save(4, /*keep=*/1);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
}

}  // namespace
}  // namespace shardwise::testing::save_test
