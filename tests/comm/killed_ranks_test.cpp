// Ranks killed or stopped at random moments of random programs of all collectives, on 2 to 8 ranks: every
// other rank names the victim and its own collective within a second, and neither its process nor the job
// leaves anything behind.
//
// `make test` draws a few faults. `make test-full` draws 1,020 kills and 204 stops, a third for each seed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <regex>
#include <thread>

#include "shardwise/comm/shm/rendezvous.h"
#include "tests/comm/kill_rounds.h"
#include "tests/comm/process_resources.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"
#include "tests/launch/program.h"
#include "tests/support/deadline.h"
#include "tests/support/error_text.h"
#include "tests/support/extent.h"
#include "tests/support/temporary.h"

namespace shardwise::testing::killed_ranks_test {
namespace {

using test::contains;

constexpr double kDeadline = 1;  // seconds from a death, or the start of a later wait, to the error

/// A survivor's CommError: "error AT WAITED 'CALL': OP #12: WHAT; rank 0 waited 0.05 s of 20 s".
struct NamedFault {
  double at_s = 0, waited_s = 0;
  std::string call, op, what;
};

NamedFault last_error(const std::string& printed) {
  static const std::regex line(R"(error (\S+) (\S+) '([^']*)': (\w+) #\d+: (.*); rank \d+ waited )");
  std::smatch words;
  const std::string last = printed.substr(std::min(printed.rfind("error "), printed.size()));
  EXPECT_TRUE(std::regex_search(last, words, line)) << printed;
  if (words.empty()) return {};
  return {std::stod(words[1]), std::stod(words[2]), words[3], words[4], words[5]};
}

/// Returns true if the error's op is that of the call: all_reduce is also "c10d allreduce_coalesced".
bool is_op_of_call(const NamedFault& error) {
  const auto letters = [](const std::string& name) {
    std::string text;
    for (const char c : name)
      if (c != '_') text += char(std::tolower(c));
    return text;
  };
  return contains(letters(error.call), letters(error.op));
}

/// Counts the faults for the summary that the destructor prints.
class Campaign {
 public:
  explicit Campaign(unsigned seed) : seed_(seed) {}
  ~Campaign() {
    std::sort(seconds_.begin(), seconds_.end());
    std::printf("covered: %d kills and %d stops of random programs (seed %u) on", kills_, stops_, seed_);
    for (const auto& [ranks, jobs] : jobs_) std::printf(" %d", ranks);
    std::printf(" ranks: %zu survivors name the victim", seconds_.size());
    if (!seconds_.empty())
      std::printf(" within %.3f s, half within %.3f s", seconds_.back(), seconds_[seconds_.size() / 2]);
    std::printf("; in");
    for (const auto& [call, times] : calls_) std::printf(" %s %d,", call.c_str(), times);
    std::printf("\n");
  }
  void count_job(int ranks) { ++jobs_[ranks]; }
  void count(const KillRound& round) { ++(round.is_stop() ? stops_ : kills_); }
  void count(const NamedFault& error, double seconds) {
    seconds_.push_back(seconds);
    ++calls_[error.call];
  }

 private:
  unsigned seed_;
  int kills_ = 0, stops_ = 0;
  std::map<int, int> jobs_;
  std::map<std::string, int> calls_;  // in which survivors were
  std::vector<double> seconds_;
};

/// The processes of one job, through all of its rounds.
class Job {
 public:
  Job(Campaign& campaign, unsigned seed, int ranks, int rounds)
      : campaign_(campaign), seed_(seed), ranks_(ranks), rounds_(rounds) {
    setenv("TMPDIR", scratch_.path().c_str(), /*overwrite=*/1);
    for (int rank = 0; rank < ranks; ++rank) workers_.push_back(start(rank, /*first=*/0));
    campaign_.count_job(ranks);
  }
  ~Job() { unsetenv("TMPDIR"); }
  Job(const Job&) = delete;

  void run() {
    for (int number = 0; number < rounds_ && !::testing::Test::HasFailure(); ++number) {
      const KillRound round(seed_, number, ranks_);
      SCOPED_TRACE("job of seed " + std::to_string(seed_) + ", round " + std::to_string(number));
      run(round);
    }
    if (::testing::Test::HasFailure()) return;  // the destructors kill the workers
    for (const auto& worker : workers_) {
      EXPECT_PRED2(contains, worker->output(), "\ndone\n");
      EXPECT_EQ(worker->wait(), 0);
    }
    expect_nothing_left();
  }

 private:
  std::unique_ptr<Worker> start(int rank, int first) const {
    const std::string scenario =
        "rounds " + std::to_string(seed_) + " " + std::to_string(first) + " " + std::to_string(rounds_);
    return std::make_unique<Worker>(scenario, name_, rank, ranks_, /*timeout_ms=*/20'000);
  }

  void run(const KillRound& round) {
    const std::string number = std::to_string(round.number);
    for (const auto& worker : workers_) worker->wait_for("\nround " + number + "\n");
    // Otherwise finding none at the end would prove nothing.
    EXPECT_EQ(processes_with(mark()).size(), workers_.size());
    std::this_thread::sleep_for(std::chrono::microseconds(round.delay_us));
    Worker& victim = *workers_[size_t(round.victim)];
    const double at_s = monotonic_s();
    victim.signal(round.is_stop() ? SIGSTOP : SIGKILL);
    for (const auto& worker : workers_) {
      if (worker.get() != &victim) worker->wait_for("end of round " + number + "\n");
    }
    expect_errors(round, at_s);
    replace_victim(round);
  }

  void expect_errors(const KillRound& round, double fault_at_s) {
    const Worker& victim = *workers_[size_t(round.victim)];
    double longest_wait_s = 0, worst_s = -KillRound::kStopTimeout;
    for (const auto& worker : workers_) {
      if (worker.get() == &victim) continue;
      EXPECT_FALSE(contains(worker->printed(), "leaks ")) << worker->printed();
      const NamedFault error = last_error(worker->printed());
      expect_names(error, round, victim.pid());
      EXPECT_PRED1(is_op_of_call, error) << error.op << " in " << error.call;
      const double waited_s = std::min(error.at_s - fault_at_s, error.waited_s);
      const double late_s = round.is_stop() ? waited_s - KillRound::kStopTimeout : waited_s;
      campaign_.count(error, late_s);
      longest_wait_s = std::max(longest_wait_s, error.waited_s);
      worst_s = std::max(worst_s, late_s);
    }
    campaign_.count(round);
    expect_within(worst_s, kDeadline);
    EXPECT_TRUE(!round.is_stop() || longest_wait_s >= KillRound::kStopTimeout) << longest_wait_s;
  }

  /// Ranks are those of the job, also in a group of a mesh of which the victim is none.
  static void expect_names(const NamedFault& error, const KillRound& round, pid_t pid) {
    const std::string rank = fmt::format("rank {} (pid {})", round.victim, pid);
    EXPECT_PRED2(contains, error.what, round.is_stop() ? "timed out waiting for " + rank : rank + " exited");
  }

  void replace_victim(const KillRound& round) {
    std::unique_ptr<Worker>& victim = workers_[size_t(round.victim)];
    victim->signal(SIGKILL);
    const int status = victim->wait();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    victim = start(round.victim, round.number + 1);
  }

  void expect_nothing_left() const {
    EXPECT_EQ(growth(before_, Resources(), {.private_bytes = (4 << 20) + kQuarantineBytes}), "");
    EXPECT_TRUE(processes_with(mark()).empty());
    EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
    for (int number = 0; number < rounds_; ++number) {
      const KillRound round(seed_, number, ranks_);
      for (const std::string& rendezvous : {round.start_of(name_), round.world_of(name_)})
        EXPECT_FALSE(has_abstract_socket(comm::shm::socket_name(rendezvous))) << rendezvous;
    }
  }

  /// A variable in the environment of the job's processes.
  std::string mark() const { return "TMPDIR=" + scratch_.path(); }

  const test::TemporaryDirectory scratch_;
  const Resources before_;
  const std::string name_ = new_job();
  Campaign& campaign_;
  unsigned seed_;
  int ranks_, rounds_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

class KilledRanks : public ::testing::TestWithParam<unsigned> {};

TEST_P(KilledRanks, AreNamedByEverySurvivorWithinASecondAndLeaveNothing) {
  Campaign campaign(GetParam());
  std::mt19937 random(GetParam());
  const int jobs = is_full() ? 34 : 1, rounds = is_full() ? 12 : 5;
  for (int i = 0; i < jobs && !HasFailure(); ++i) {
    const int ranks = 2 + int(random() % 7);
    Job(campaign, unsigned(random()), ranks, rounds).run();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, KilledRanks, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace shardwise::testing::killed_ranks_test
