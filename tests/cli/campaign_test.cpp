// Faults at random moments of training and saving, drawn from a seed: the job ends in time, says who and
// where, leaves nothing, and goes on from its last checkpoint as if nothing had happened.
//
// `make test` draws a few, `make test-full` all; each campaign prints what it came to.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "tests/cli/chain.h"
#include "tests/support/error_text.h"
#include "tests/support/extent.h"

namespace shardwise::testing {
namespace {

using test::contains;

constexpr double kDeadline = 2;  // seconds from a death to the end of the job
constexpr const char* kOperation = "(all_gather|reduce_scatter|all_reduce|expose|broadcast|barrier) #\\d+: ";

int samples(int full, int few) {
  return is_full() ? full : few;
}

/// Draws, and keeps the tally that is printed at the end.
class Campaign {
 public:
  Campaign(const char* name, unsigned seed) : name_(name), seed_(seed), random_(seed) {}
  ~Campaign() {
    fmt::print(
        "{} (seed {}): {} faults, worst end after {:.2f} s, {} while a save was half written, {} steps "
        "compared\n",
        name_, seed_, faults_, worst_, stale_, compared_);
  }
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }
  void sleep_up_to_ms(int limit) { usleep(static_cast<useconds_t>(below(limit * 1000))); }
  void count(const Ending& ending) {
    ++faults_;
    worst_ = std::max(worst_, ending.seconds);
    stale_ += !ending.stale.empty();
  }
  void compared(size_t steps) { compared_ = steps; }
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
  EXPECT_PRED2(contains, ending.said,
               "shardwise: " + victim + " was killed by signal 9 (Killed); the job is ended");
}

/// The survivors' side; the victim's parentheses are to be read literally.
void expect_operation(const Ending& ending, int rank, pid_t pid, const std::string& what) {
  const std::regex line(
      fmt::format("{}rank {} \\(pid {}\\) {}; rank \\d+ waited", kOperation, rank, pid, what));
  EXPECT_TRUE(std::regex_search(ending.said, line)) << ending.said;
}

struct KillCase {
  int tp, save_every;
  std::vector<std::string> flags;
  unsigned seed;
};

/// Kills a random rank at random moments: mostly of the steps, every fifth time of the start.
void kill_ranks(Campaign& campaign, Chain& chain, int tp) {
  chain.start();
  const int rank = campaign.below(tp);
  const bool while_starting = chain.starts() > 1 && campaign.below(5) == 0;
  if (!while_starting) chain.wait_for_steps(1);
  const pid_t pid = chain.pid_of_rank(rank);
  campaign.sleep_up_to_ms(while_starting ? 1000 : 300);
  ASSERT_TRUE(send_to(pid, SIGKILL));
  const Ending ending = chain.end(kDeadline);
  campaign.count(ending);
  expect_names_killed_rank(ending, rank, pid);
  if (!while_starting) expect_operation(ending, rank, pid, "is gone");
}

class KilledRanks : public ::testing::TestWithParam<KillCase> {};

TEST_P(KilledRanks, EndTheJobInTimeAndItGoesOnAsIfUndisturbed) {
  const KillCase& c = GetParam();
  Campaign campaign("killed ranks", c.seed);
  Chain chain(c.tp, c.save_every, c.flags);
  for (int i = 0; i < samples(100, 2) && !HasFailure(); ++i) kill_ranks(campaign, chain, c.tp);
  campaign.compared(chain.expect_undisturbed_curve());
  if (is_full() && c.save_every == 1) {
    EXPECT_GT(campaign.half_written(), 0) << "no kill hit a save";
  }
}

INSTANTIATE_TEST_SUITE_P(Training, KilledRanks,
                         ::testing::Values(KillCase{2, 5, {"--dropout", "0.1", "--no-sequence-parallel"}, 1},
                                           KillCase{3, 5, {"--dtype", "bf16"}, 2}));

INSTANTIATE_TEST_SUITE_P(Saving, KilledRanks,
                         ::testing::Values(KillCase{2, 1, {}, 3}, KillCase{3, 1, {"--dtype", "bf16"}, 4}));

TEST(StoppedRanks, AreLateAtTheTimeout) {
  constexpr double kTimeout = 3;  // longer than ranks take to come on a busy machine
  Campaign campaign("stopped ranks", 5);
  Chain chain(/*tp=*/2, /*save_every=*/5, {"--timeout", std::to_string(kTimeout)});
  for (int i = 0; i < samples(10, 1) && !::testing::Test::HasFailure(); ++i) {
    chain.start();
    chain.wait_for_steps(1);
    const int rank = campaign.below(2);
    const pid_t pid = chain.pid_of_rank(rank);
    campaign.sleep_up_to_ms(300);
    ASSERT_TRUE(send_to(pid, SIGSTOP));
    const Ending ending = chain.end(kTimeout + kDeadline);
    campaign.count(ending);
    EXPECT_GE(ending.seconds, kTimeout - 0.1) << ending.said;
    EXPECT_EQ(exit_code(ending.status), 1);
    expect_operation(ending, rank, pid, "did not come");
  }
  campaign.compared(chain.expect_undisturbed_curve());
}

TEST(KilledLauncher, LeavesNothing) {
  Campaign campaign("killed launchers", 6);
  Chain chain(/*tp=*/3, /*save_every=*/2);
  for (int i = 0; i < samples(50, 2) && !::testing::Test::HasFailure(); ++i) {
    chain.start();
    if (i == 0 || campaign.below(2) == 0) chain.wait_for_steps(1);
    campaign.sleep_up_to_ms(400);
    ASSERT_TRUE(send_to(chain.pid(), SIGKILL));
    const Ending ending = chain.end(kDeadline);
    campaign.count(ending);
    EXPECT_TRUE(WIFSIGNALED(ending.status)) << ending.status;
  }
  campaign.compared(chain.expect_undisturbed_curve());
}

}  // namespace
}  // namespace shardwise::testing
