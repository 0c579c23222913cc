// Faults of a training job while it runs: the job ends in time, names the rank, and leaves no process and a
// valid checkpoint.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "shardwise/base/error.h"
#include "shardwise/base/random.h"
#include "shardwise/cli/ranks.h"
#include "tests/cli/chain.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::cli::fault_test {
namespace {

using test::contains;
using testing::processes_with;
using testing::Program;
using testing::Scratch;

/// A job that would run for hours, saving every 20 steps, with an environment variable that marks its
/// processes.
class LongJob {
 public:
  explicit LongJob(const std::string& tp, const std::string& dp = "1", const std::string& pp = "1")
      : dp_(dp),
        pp_(pp),
        mark_("SHARDWISE_TEST_MARK=" + scratch_.path()),
        program_(argv(tp), {.environment = {mark_, "SHARDWISE_THREADS=1"}}) {}

  void wait_for_checkpoint() const { testing::wait_for_checkpoint(scratch_ / "saved", program_); }

  pid_t pid_of_rank(int rank) const { return testing::pid_of_rank(rank, mark_); }

  /// Returns the exit code; fails the test if the job takes `limit_s` or longer.
  int wait(double limit_s, std::source_location where = std::source_location::current()) {
    return testing::exit_code(program_.wait_within(limit_s, where));
  }

  void expect_nothing_left() const { EXPECT_TRUE(processes_with(mark_).empty()); }

  void expect_good_checkpoint() {
    Program generate({SHARDWISE_PROGRAM, "generate", "--model", scratch_ / "saved", "--prompt", "line",
                      "--max-new-tokens", "1"});
    EXPECT_EQ(generate.wait(), 0) << generate.errors();
  }

  Program& program() { return program_; }

  /// Returns the command of a run that goes on from the newest checkpoint.
  std::vector<std::string> resumed(const std::string& tp) const {
    std::vector<std::string> command = argv(tp);
    command.insert(command.end(), {"--resume", scratch_ / "saved"});
    return command;
  }

 private:
  std::vector<std::string> argv(const std::string& tp) const {
    return testing::training_command(
        scratch_, testing::kEndless,
        {"--dp", dp_, "--pp", pp_, "--tp", tp, "--save", scratch_ / "saved", "--save-every", "20"});
  }

  Scratch scratch_;
  std::string dp_, pp_;
  const train::TrainOptions written_ = testing::small_options(scratch_);  // its text and config
  std::string mark_;
  Program program_;
};

// Before, each run pruned the other's checkpoints.
TEST(Fault, ASecondRunWithTheSameSaveIsRefused) {
  for (const char* tp : {"1", "2"}) {
    LongJob first("2");
    first.wait_for_checkpoint();
    // A checkpoint that the first run saves meanwhile would be another reason to refuse the second.
    const pid_t ranks[] = {first.pid_of_rank(0), first.pid_of_rank(1)};
    for (const pid_t pid : ranks) EXPECT_TRUE(testing::send_to(pid, SIGSTOP));
    Program second(first.resumed(tp), {.environment = {"SHARDWISE_THREADS=1"}});
    EXPECT_EQ(testing::exit_code(second.wait()), 2);
    for (const pid_t pid : ranks) EXPECT_TRUE(testing::send_to(pid, SIGCONT));
    EXPECT_PRED2(contains, second.errors(),
                 "one run at a time may save here; got a run of pid " + std::to_string(ranks[0]));
    first.program().send(SIGINT);
    EXPECT_EQ(first.wait(2), 130);
    first.expect_nothing_left();
    first.expect_good_checkpoint();
  }
}

TEST(Fault, KilledRankEndsTheJobAndIsNamedWithTheCollective) {
  LongJob job("3");
  job.wait_for_checkpoint();
  ASSERT_TRUE(testing::send_to(job.pid_of_rank(1), SIGKILL));
  EXPECT_EQ(job.wait(2), 1);
  const std::string errors = job.program().errors();
  EXPECT_PRED2(contains, errors, "rank 1");
  EXPECT_PRED2(contains, errors, "killed by signal 9");
  const auto names = {"all_gather", "reduce_scatter", "all_reduce", "share_shard", "read"};
  EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const char* name) {
    return contains(errors, name);
  })) << errors;
  job.expect_nothing_left();
  job.expect_good_checkpoint();
}

/// Every rank of two replicas, or of two stages, is killed in turn, at a random point of a step: also those
/// that share no group with rank 3 but that of the job.
TEST(Fault, ALostRankOfAnyReplicaOrStageEndsTheJobAndIsNamed) {
  struct Loss {
    int signal;
    const char *dp, *pp;
  };
  for (const auto& [signal, dp, pp] :
       {Loss{SIGKILL, "2", "1"}, Loss{SIGABRT, "2", "1"}, Loss{SIGKILL, "1", "2"}}) {
    for (int rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE("signal " + std::to_string(signal) + " to rank " + std::to_string(rank) + " dp " + dp +
                   " pp " + pp);
      LongJob job("2", dp, pp);
      job.wait_for_checkpoint();
      std::this_thread::sleep_for(std::chrono::microseconds(base::random_bits() % 20000));
      ASSERT_TRUE(testing::send_to(job.pid_of_rank(rank), signal));
      EXPECT_EQ(job.wait(2), 1);
      const std::string errors = job.program().errors();
      EXPECT_PRED2(contains, errors, "rank " + std::to_string(rank) + " (pid ");
      EXPECT_PRED2(contains, errors, "by signal " + std::to_string(signal));
      job.expect_nothing_left();
      job.expect_good_checkpoint();
    }
  }
}

TEST(Fault, InterruptedReplicasEnd) {
  LongJob job("2", "2");
  job.wait_for_checkpoint();
  job.program().send(SIGINT);
  EXPECT_EQ(job.wait(2), 128 + SIGINT);
  job.expect_nothing_left();
  job.expect_good_checkpoint();
}

TEST(Fault, InterruptedJobEndsWithItsRanks) {
  LongJob job("2");
  job.wait_for_checkpoint();
  job.program().send(SIGINT);
  EXPECT_EQ(job.wait(2), 128 + SIGINT);
  EXPECT_PRED2(contains, job.program().errors(), "signal 2");
  job.expect_nothing_left();
  job.expect_good_checkpoint();
}

TEST(Fault, InterruptedRunOfOneRankEnds) {
  LongJob job("1");
  job.wait_for_checkpoint();
  job.program().send(SIGINT);
  EXPECT_EQ(job.wait(2), 128 + SIGINT);
  EXPECT_PRED2(contains, job.program().errors(), "shardwise: ended by signal 2");
  job.expect_nothing_left();
  job.expect_good_checkpoint();
}

TEST(Fault, TerminatedJobEndsWithItsRanks) {
  LongJob job("2");
  job.wait_for_checkpoint();
  job.program().send(SIGTERM);
  EXPECT_EQ(job.wait(2), 128 + SIGTERM);
  job.expect_nothing_left();
  job.expect_good_checkpoint();
}

/// The first replica alone saves; the others must not wait for it.
TEST(Fault, FullDiskWhileSavingEndsAllReplicas) {
  const Scratch scratch;
  testing::small_options(scratch);
  std::string train = std::string(SHARDWISE_PROGRAM) + " train --dp 2 --tp 2";
  for (const std::string& word : testing::training_command(scratch, testing::kEndless, {}))
    train += word == SHARDWISE_PROGRAM || word == "train" ? "" : " " + word;
  // Files may not grow beyond 16 KiB.
  Program program(
      {"/bin/bash", "-c", "ulimit -S -f 16; exec " + train + " --save-every 2 --save " + scratch / "saved"});
  EXPECT_EQ(testing::exit_code(program.wait_within(20)), 1);
  EXPECT_PRED2(contains, program.errors(), "File too large");
}

TEST(Fault, FullDiskWhileSavingKeepsTheLastCheckpoint) {
  const Scratch scratch;
  testing::small_options(scratch);
  const std::string train = std::string(SHARDWISE_PROGRAM) + " train --text " + scratch / "text" +
                            " --model-config " + scratch / "config.json" +
                            " --seq-len 11 --batch-size 2 --steps 4 --save " + scratch / "saved";
  Program first({"/bin/bash", "-c", train + " --stop-after 2"});
  ASSERT_EQ(first.wait(), 0) << first.errors();
  // Files may not grow beyond 16 KiB.
  Program second({"/bin/bash", "-c", "ulimit -S -f 16; exec " + train + " --resume " + scratch / "saved"});
  EXPECT_EQ(testing::exit_code(second.wait()), 1);
  EXPECT_PRED2(contains, second.errors(), "rank 0");
  EXPECT_PRED2(contains, second.errors(), scratch / "saved");
  EXPECT_PRED2(contains, second.errors(), "File too large");
  EXPECT_EQ(std::filesystem::read_symlink(scratch / "saved/latest"), "step-2");
  EXPECT_FALSE(std::filesystem::exists(scratch / "saved/step-4"));
  Program resumed({"/bin/bash", "-c", train + " --resume " + scratch / "saved"});
  EXPECT_EQ(resumed.wait(), 0) << resumed.errors();
}

TEST(Fault, ErrorInARankIsARunTimeFailureOfThatRank) {
  const auto body = [](const comm::Group&) {
    TORCH_CHECK_VALUE(false, "text: must not change during the run");
  };
  try {
    run_on_ranks({launch::LaunchContext{}, /*ranks=*/1, RankOptions{}, {}}, body);
    ADD_FAILURE() << "nothing thrown";
  } catch (const c10::ValueError& error) {
    ADD_FAILURE() << "would exit 2: " << error.what();
  } catch (const c10::Error& error) {
    EXPECT_PRED2(contains, base::one_line(error), "rank 0: text: must not change");
  }
}

TEST(Fault, NonFiniteLossIsARunTimeFailure) {
  const Scratch scratch;
  testing::small_options(scratch);
  Program program({SHARDWISE_PROGRAM,
                   "train",
                   "--text",
                   scratch / "text",
                   "--model-config",
                   scratch / "config.json",
                   "--seq-len",
                   "11",
                   "--batch-size",
                   "2",
                   "--steps",
                   "5",
                   "--lr",
                   "1e30",
                   "--tp",
                   "2",
                   "--save",
                   scratch / "saved",
                   "--save-every",
                   "1"});
  EXPECT_EQ(testing::exit_code(program.wait()), 1);
  EXPECT_PRED2(contains, program.errors(), "must be finite");
  EXPECT_PRED2(contains, program.errors(), "in step 2");
  EXPECT_PRED2(contains, program.errors(), "rank 0");
  EXPECT_TRUE(std::filesystem::exists(scratch / "saved/step-1/config.json"));
}

}  // namespace
}  // namespace shardwise::cli::fault_test
