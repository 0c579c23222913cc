// What a save leaves in its directory, and what it leaves alone when it fails or dies.
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "shardwise/base/clock.h"
#include "shardwise/base/files.h"
#include "tests/checkpoint/fixture.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"

namespace shardwise::testing::save_test {
namespace {

using test::contains;
using Names = std::vector<std::string>;

class Save : public ::testing::Test {
 protected:
  void save(int64_t step, int64_t keep = 0, int ranks = 1) const {
    save_whole(dir_.path(), config_, whole_, ranks, step, keep);
  }
  /// Whether the directory that `latest` leads to is whole and holds this test's tensors.
  bool latest_is_whole() const {
    const auto directory = checkpoint::resolve(dir_.path());
    checkpoint::check(directory, /*needs_state=*/true);
    RankState rank(config_, comm::Group(), whole_);
    checkpoint::load_weights(directory, rank.weights);
    checkpoint::load_state(directory, rank.state, rank.weights);
    return differing(rank, whole_).empty();
  }
  std::string latest() const { return std::filesystem::read_symlink(dir_ / "latest"); }

  const model::Config config_ = uneven_config();
  const WholeState whole_ = whole_state(config_, at::kFloat, /*seed=*/1);
  const TemporaryDirectory dir_;
};

TEST_F(Save, LeavesTheStepDirectoryAndALink) {
  save(4, /*keep=*/0, /*ranks=*/2);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
  EXPECT_EQ(names_in(dir_ / "step-4"), (Names{"config.json", "model.safetensors", "optimizer.safetensors"}));
  EXPECT_EQ(latest(), "step-4");
}

TEST_F(Save, MakesTheDirectoriesAboveIt) {
  save_whole(dir_ / "a/b", config_, whole_, /*ranks=*/1, /*step=*/1);
  EXPECT_EQ(names_in(dir_ / "a/b"), (Names{"latest", "step-1"}));
}

TEST_F(Save, KeepsTheNewest) {
  for (const int64_t step : {9, 10, 11}) save(step, /*keep=*/2);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-10", "step-11"}));
  save(12, /*keep=*/1);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-12"}));
  for (const int64_t step : {13, 14}) save(step, /*keep=*/0);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-12", "step-13", "step-14"}));
}

TEST_F(Save, PrefersItsOwnPastToARunThatWasGivenUp) {
  for (const int64_t step : {10, 30, 40}) save(step);
  save(20, /*keep=*/2);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-10", "step-20"}));
  EXPECT_EQ(latest(), "step-20");
}

TEST_F(Save, PrunesNothingElse) {
  dir_.put("step-1/notes.txt", "a directory of the user's is a step by its name alone");
  dir_.put("step-2x/keep", "");
  dir_.put("step-", "");
  dir_.put("step-3", "a file");
  save(4, /*keep=*/1);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-", "step-2x", "step-3", "step-4"}));
}

TEST_F(Save, ReplacesTheSameStep) {
  const WholeState other = whole_state(config_, at::kFloat, /*seed=*/99);
  save_whole(dir_.path(), config_, other, /*ranks=*/2, /*step=*/4);
  EXPECT_FALSE(latest_is_whole());
  save(4, /*keep=*/1, /*ranks=*/3);
  EXPECT_TRUE(latest_is_whole());
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
}

TEST_F(Save, RemovesWhatADeadRunLeftAndNothingElse) {
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

TEST_F(Save, FailureOfOneRankIsEveryRanksAndTheOldStands) {
  save(4, /*keep=*/0, /*ranks=*/3);
  for (int broken = 0; broken < 3; ++broken) {
    std::vector<std::string> said(3);
    on_ranks(3, [&](const comm::Group& group) {
      RankState rank(config_, group, whole_);
      rank.state.step = 5;
      if (group.rank() == broken) rank.state.parameters[2].exp_avg = at::full({3}, 0, at::kFloat);
      said[group.rank()] = test::error_text<c10::Error>(
          [&] { checkpoint::save(dir_.path(), rank.weights, rank.state, /*keep=*/1); });
    });
    for (int rank = 0; rank < 3; ++rank) {
      const std::string part = rank == broken
                                   ? "q_proj.weight.exp_avg must be contiguous and have the parameter's"
                                   : "got a failure on rank " + std::to_string(broken);
      EXPECT_PRED2(contains, said[rank], part);
    }
    EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
    EXPECT_TRUE(latest_is_whole());
  }
}

TEST_F(Save, AStateThatCannotBePlannedFailsAllToo) {
  on_ranks(2, [&](const comm::Group& group) {
    RankState rank(config_, group, whole_);
    if (group.rank() == 1) rank.state.parameters[0].exp_avg = at::full({1}, 0, at::kInt);
    const std::string text = test::error_text<c10::Error>(
        [&] { checkpoint::save(dir_.path(), rank.weights, rank.state, /*keep=*/0); });
    EXPECT_PRED2(contains, text,
                 group.rank() == 1 ? "must be fp64, fp32, bf16 or fp16; got Int" : "on rank 1");
  });
  EXPECT_EQ(names_in(dir_.path()), Names{});
}

TEST_F(Save, AFileInPlaceOfTheDirectoryIsNamed) {
  const std::string file = dir_.put("taken", "");
  const std::string text =
      test::error_text<base::FileError>([&] { save_whole(file, config_, whole_, 1, 1); });
  EXPECT_PRED2(contains, text, file + ": Not a directory");
}

/// Files of this process may not grow beyond `bytes` while this lives: what a full disk does, without one.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : old_action_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{bytes, old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    ::signal(SIGXFSZ, old_action_);
  }

 private:
  rlimit old_limit_{};
  void (*old_action_)(int);
};

TEST_F(Save, NoRoomIsNamedAndTheOldStands) {
  save(4);
  std::vector<std::string> said(2);
  {
    const SmallFiles small(20'000);
    on_ranks(2, [&](const comm::Group& group) {
      RankState rank(config_, group, whole_);
      rank.state.step = 5;
      said[group.rank()] = test::error_text<c10::Error>(
          [&] { checkpoint::save(dir_.path(), rank.weights, rank.state, /*keep=*/1); });
    });
  }
  EXPECT_PRED2(contains, said[0], dir_ / ".step-5.tmp-");
  EXPECT_PRED2(contains, said[0], "/model.safetensors: File too large");
  EXPECT_PRED2(contains, said[1],
               "save " + dir_ / "step-5: must succeed on every rank; got a failure on rank 0");
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
  EXPECT_TRUE(latest_is_whole());
}

TEST_F(Save, KilledAtAnyMomentLeavesAWholeCheckpoint) {
  save(1, /*keep=*/1);
  RankState rank(config_, comm::Group(), whole_);
  fill_(rank, whole_);
  const auto start_saving = [&] {
    const pid_t child = ::fork();  // which has this thread alone: on_ranks would wait for the others
    if (child != 0) return child;
    // Every step twice: once new, pruning the one before, and once in place of itself.
    for (int64_t saves = 0;; ++saves) {
      rank.state.step = 2 + saves / 2;
      checkpoint::save(dir_.path(), rank.weights, rank.state, /*keep=*/1);
    }
  };
  const auto kill_and_look = [&](pid_t child) {
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ASSERT_TRUE(latest_is_whole());
  };
  for (int kill_after_us = 0; kill_after_us < 12'000; kill_after_us += 800) {
    SCOPED_TRACE("killed after us: " + std::to_string(kill_after_us));
    const pid_t child = start_saving();
    std::this_thread::sleep_for(std::chrono::microseconds(kill_after_us));
    kill_and_look(child);
  }
  // And once when a save has been whole, however long that takes here.
  const pid_t child = start_saving();
  const auto has_saved = [&] { return checkpoint::resolve(dir_.path()) != dir_ / "step-1"; };
  for (const base::Stopwatch watch; !has_saved() && watch.seconds() < 60;) ::usleep(1000);
  EXPECT_TRUE(has_saved());
  kill_and_look(child);
  save(4, /*keep=*/1);
  EXPECT_EQ(names_in(dir_.path()), (Names{"latest", "step-4"}));
}

}  // namespace
}  // namespace shardwise::testing::save_test
