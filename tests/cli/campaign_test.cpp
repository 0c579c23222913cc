// Faults at random moments of training and saving, drawn from a seed: the job ends in time, names the rank
// and the collective, leaves no processes or files, and resumes from its last checkpoint with the losses of
// an undisturbed run.
//
// `make test` draws a few faults, `make test-full` all; each campaign prints its counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "tests/cli/chain.h"
#include "tests/support/deadline.h"
#include "tests/support/error_text.h"
#include "tests/support/extent.h"

namespace shardwise::testing::campaign_test {
namespace {

using test::contains;

constexpr double kDeadline = 2;  // seconds from a death to the end of the job
constexpr const char* kOperation =
    "(all_gather|reduce_scatter|all_reduce|share_shard|broadcast|barrier) #\\d+: ";

int samples(int full, int few) {
  return is_full() ? full : few;
}

/// Draws random numbers, and counts the faults for a summary that the destructor prints.
class Campaign {
 public:
  Campaign(const char* name, unsigned seed) : name_(name), seed_(seed), random_(seed) {}
  ~Campaign() {
    fmt::print(
        "covered: {} (seed {}): {} faults, worst end after {:.2f} s, {} while a save was half written, "
        "{} steps compared\n",
        name_, seed_, faults_, worst_, stale_, compared_);
  }
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }
  void sleep_up_to_ms(int limit) { usleep(static_cast<useconds_t>(below(limit * 1000))); }
  void count(const Ending& ending) {
    ++faults_;
    worst_ = std::max(worst_, ending.seconds);
    stale_ += ending.hit_save;
  }
  void compared(size_t steps) { compared_ = steps; }
  int faults() const { return faults_; }
  int half_written() const { return stale_; }

 private:
  const char* name_;
  unsigned seed_;
  std::mt19937 random_;
  int faults_ = 0, stale_ = 0;
  double worst_ = 0;
  size_t compared_ = 0;
};

void expect_names_killed_rank(const Ending& ending, int rank, pid_t pid) {
  EXPECT_EQ(exit_code(ending.status), 1);
  const std::string victim = fmt::format("rank {} (pid {})", rank, pid);
  EXPECT_PRED2(contains, ending.errors,
               "shardwise: " + victim + " was killed by signal 9 (Killed); the job is ended");
}

/// Expects the CommError of the surviving ranks; the parentheses of "(pid N)" are literal in the regex.
void expect_operation(const Ending& ending, const std::string& before, int rank, pid_t pid,
                      const std::string& after) {
  const std::regex line(
      fmt::format("{}{}rank {} \\(pid {}\\){}; rank \\d+ waited", kOperation, before, rank, pid, after));
  EXPECT_TRUE(std::regex_search(ending.errors, line)) << ending.errors;
}

struct KillCase {
  int tp, save_every;
  std::vector<std::string> flags;
  unsigned seed;
  config::Config config = small_byte_config();
  int groups = 1;  // of tp ranks each: replicas and stages
  int ranks() const { return groups * tp; }
  bool aims_at_saves() const { return save_every == 1; }
};

/// Kills the rank and checks the end of the job.
Ending kill_rank(Campaign& campaign, Chain& chain, int rank, pid_t pid) {
  EXPECT_TRUE(chain.send(pid, SIGKILL));
  Ending ending = chain.end(kDeadline);
  campaign.count(ending);
  expect_names_killed_rank(ending, rank, pid);
  return ending;
}

/// Kills a random rank at a random moment: during a step, or every fifth time during the start.
void kill_in_steps(Campaign& campaign, Chain& chain, int ranks) {
  chain.start();
  const int rank = campaign.below(ranks);
  const bool while_starting = chain.starts() > 1 && campaign.below(5) == 0;
  if (!while_starting) chain.wait_for_steps(1);
  const pid_t pid = chain.pid_of_rank(rank);
  campaign.sleep_up_to_ms(while_starting ? 1000 : 300);
  const Ending ending = kill_rank(campaign, chain, rank, pid);
  if (!while_starting) expect_operation(ending, "", rank, pid, " exited");
}

/// Waits until a save is in progress, and still or again in progress `delay_us` later.
void wait_for_save(const Chain& chain, useconds_t delay_us) {
  constexpr double kLimit = 60;  // seconds; a step and its save take milliseconds
  const base::Stopwatch watch;
  const auto is_time = [&] { return chain.is_saving() || watch.seconds() > scaled_s(kLimit); };
  do {
    while (!is_time()) usleep(50);
    usleep(delay_us);
  } while (!is_time());
  ASSERT_LE(watch.seconds(), scaled_s(kLimit)) << "no save was seen";
}

/// Kills a random rank at a random moment of a save. The next start shows that the run resumes: it waits for
/// a step.
void kill_in_a_save(Campaign& campaign, Chain& chain, int ranks) {
  chain.start();
  const int rank = campaign.below(ranks);
  const auto delay_us = static_cast<useconds_t>(campaign.below(5000));
  chain.wait_for_steps(1);
  const pid_t pid = chain.pid_of_rank(rank);
  wait_for_save(chain, delay_us);
  expect_operation(kill_rank(campaign, chain, rank, pid), "", rank, pid, " exited");
  chain.expect_newest_checkpoint();
}

class KilledRanks : public ::testing::TestWithParam<KillCase> {};

TEST_P(KilledRanks, EndTheJobInTimeAndItResumesToTheSameLosses) {
  const KillCase& c = GetParam();
  Campaign campaign("killed ranks", c.seed);
  Chain chain(c.tp, c.save_every, c.flags, c.config);
  const auto kill = c.aims_at_saves() ? kill_in_a_save : kill_in_steps;
  const int kills = samples(c.aims_at_saves() ? 250 : 100, 2);
  for (int i = 0; i < kills && !HasFailure(); ++i) kill(campaign, chain, c.ranks());
  campaign.compared(chain.expect_undisturbed_curve());
  if (c.aims_at_saves()) {  // half: a rank may finish its save between the check and the signal
    EXPECT_GE(2 * campaign.half_written(), campaign.faults()) << "too few kills hit a save";
  }
}

INSTANTIATE_TEST_SUITE_P(Training, KilledRanks,
                         ::testing::Values(KillCase{2, 5, {"--dropout", "0.1", "--no-sequence-parallel"}, 1},
                                           KillCase{3, 5, {"--dtype", "bf16"}, 2},
                                           KillCase{2,
                                                    5,
                                                    {"--recompute", "full", "--attention-dropout", "0.1",
                                                     "--freeze", "transformer.h.0.*"},
                                                    7,
                                                    as_gpt2(small_byte_config())}));

/// Replicas, stages and both: ranks die of which others know only by the job's group.
INSTANTIATE_TEST_SUITE_P(
    Axes, KilledRanks,
    ::testing::Values(
        KillCase{2, 5, {"--dp", "2", "--grad-accum", "3"}, 21, small_byte_config(), /*groups=*/2},
        KillCase{
            1, 5, {"--pp", "2", "--dp", "2", "--grad-accum", "4"}, 22, small_byte_config(), /*groups=*/4},
        KillCase{
            1, 5, {"--dp", "3", "--zero", "3", "--grad-accum", "4"}, 25, small_byte_config(), /*groups=*/3},
        KillCase{2, 5, {"--pp", "2", "--dropout", "0.1"}, 23, as_gpt2(small_byte_config()), /*groups=*/2},
        KillCase{
            1, 1, {"--pp", "2", "--dp", "2", "--grad-accum", "4"}, 24, small_byte_config(), /*groups=*/4}));

INSTANTIATE_TEST_SUITE_P(Saving, KilledRanks,
                         ::testing::Values(KillCase{2, 1, {}, 3}, KillCase{3, 1, {"--dtype", "bf16"}, 4}));

/// `groups` of `tp` ranks.
struct StopCase {
  int tp, groups;
  std::vector<std::string> flags;
};

class StoppedRanks : public ::testing::TestWithParam<StopCase> {};

TEST_P(StoppedRanks, EndTheJobAtTheTimeout) {
  const StopCase& c = GetParam();
  const int ranks = c.groups * c.tp;
  const double timeout = 2 * ranks;  // longer than ranks need to start on a busy machine
  Campaign campaign("stopped ranks", /*seed=*/10 + ranks);
  std::vector<std::string> flags = c.flags;
  flags.insert(flags.end(), {"--timeout", std::to_string(timeout)});
  Chain chain(c.tp, /*save_every=*/5, flags);
  for (int i = 0; i < samples(10, 1) && !HasFailure(); ++i) {
    chain.start();
    chain.wait_for_steps(1);
    const int rank = campaign.below(ranks);
    const pid_t pid = chain.pid_of_rank(rank);
    campaign.sleep_up_to_ms(300);
    ASSERT_TRUE(chain.send(pid, SIGSTOP));
    const Ending ending = chain.end(timeout + kDeadline);
    campaign.count(ending);
    EXPECT_GE(ending.seconds, timeout - 0.1) << ending.errors;
    EXPECT_EQ(exit_code(ending.status), 1);
    expect_operation(ending, "timed out waiting for ", rank, pid, "");
  }
  campaign.compared(chain.expect_undisturbed_curve());
}

INSTANTIATE_TEST_SUITE_P(Ranks, StoppedRanks,
                         ::testing::Values(StopCase{2, 1, {}}, StopCase{3, 1, {}},
                                           StopCase{1, 2, {"--dp", "2"}},
                                           StopCase{1, 2, {"--pp", "2", "--grad-accum", "2"}}));

TEST(KilledLauncher, LeavesNoProcessesOrFiles) {
  Campaign campaign("killed launchers", 6);
  Chain chain(/*tp=*/3, /*save_every=*/2);
  for (int i = 0; i < samples(50, 2) && !::testing::Test::HasFailure(); ++i) {
    chain.start();
    if (i == 0 || campaign.below(2) == 0) chain.wait_for_steps(1);
    campaign.sleep_up_to_ms(400);
    ASSERT_TRUE(chain.send(chain.pid(), SIGKILL));
    const Ending ending = chain.end(kDeadline);
    campaign.count(ending);
    EXPECT_TRUE(WIFSIGNALED(ending.status)) << ending.status;
  }
  campaign.compared(chain.expect_undisturbed_curve());
}

}  // namespace
}  // namespace shardwise::testing::campaign_test
