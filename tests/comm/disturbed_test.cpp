// Random programs on worker processes that are delayed, stopped and killed at random times, from fixed seeds:
// results stay correct, and the remaining ranks' errors name the missing rank.
//
// A rank delays itself between its calls (mixed.h); this process stops it inside them.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <regex>
#include <thread>

#include "shardwise/base/error.h"
#include "tests/comm/mixed.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"
#include "tests/support/deadline.h"
#include "tests/support/extent.h"

namespace shardwise::testing::disturbed_test {
namespace {

constexpr int kRanks = 4;

/// A worker's CommError, parsed: `all_reduce #12: what; rank 0 waited 0.05 s of 20 s`.
struct ParsedError {
  std::string op, what;
  long sequence = 0;
  int rank = -1;
  double elapsed_s = -1;
};

ParsedError parse_error(const std::string& output) {
  const std::regex line(R"((\w+) #(\d+): (.*); rank (\d+) waited ([\d.]+) s of \d+ s)");
  std::smatch words;
  EXPECT_TRUE(std::regex_search(output, words, line)) << output;
  if (words.empty()) return {};
  return {words[1], words[3], std::stol(words[2]), std::stoi(words[4]), std::stod(words[5])};
}

bool is_an_op(const std::string& name) {
  const std::string ops[] = {"broadcast", "all_gather", "all_reduce", "reduce_scatter",
                             "scatter",   "gather",     "all_to_all", "share_shard",
                             "barrier",   "send",       "recv",       "monitored_barrier"};
  return std::ranges::find(ops, name) != std::end(ops);
}

std::string scenario(unsigned seed, int steps, const std::string& groups, const std::string& end = "") {
  return "mixed " + std::to_string(seed) + " " + std::to_string(steps) + " " + groups + " " + end;
}

/// Returns the last `step N` that a worker printed.
std::string last_step(const std::string& printed) {
  const size_t begin = printed.rfind("step ");
  return printed.substr(begin, printed.find('\n', begin) - begin);
}

// A rank that is stopped anywhere, before an arrival or a departure barrier, is only late.
TEST(DelayedRanks, GetCorrectResults) {
  const int stops = is_full() ? 3000 : 40;
  std::vector<Worker> workers = start_workers(scenario(31, /*steps=*/0, "mesh"), kRanks, 60'000);
  std::mt19937 random(31);
  for (Worker& worker : workers) worker.wait_for("step 50\n");
  for (int i = 0; i < stops; ++i) {
    const Worker& late = workers[random() % kRanks];
    late.signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 16));
    late.signal(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 16));
  }
  for (Worker& worker : workers) {
    EXPECT_EQ(worker.printed().find("done"), std::string::npos) << "ended before the last stop";
    worker.wait_for("step 100\n");
  }
  const std::string steps = last_step(workers[0].printed());
  for (const Worker& worker : workers) worker.signal(SIGTERM);
  for (const std::string& output : outputs_of(workers)) {
    EXPECT_NE(output.find("\ndone\n"), std::string::npos) << output;
  }
  std::printf("covered: %d random stops of ranks until %s of random programs\n", stops, steps.c_str());
}

/// Returns the errors of the ranks other than `victim`.
std::vector<ParsedError> errors_of_others(std::vector<Worker>& workers, int victim) {
  std::vector<ParsedError> errors;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    errors.push_back(parse_error(workers[size_t(rank)].output()));
    EXPECT_TRUE(is_an_op(errors.back().op)) << errors.back().op;
    EXPECT_GT(errors.back().sequence, 0);
  }
  return errors;
}

std::string pid_of(const Worker& worker) {
  return "(pid " + std::to_string(worker.pid()) + ")";
}

TEST(KilledRanks, AreNamedByAllOthersWithinASecond) {
  const int kills = is_full() ? 200 : 6;
  double longest_s = 0;
  for (int i = 0; i < kills; ++i) {
    const int victim = i % kRanks;
    const std::string end = std::to_string(victim) + " " + std::to_string(SIGKILL);
    const unsigned seed = 100 + unsigned(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<Worker> workers = start_workers(scenario(seed, 200, i % 2 ? "mesh" : "world", end), kRanks);
    for (const ParsedError& error : errors_of_others(workers, victim)) {
      EXPECT_NE(error.what.find(pid_of(workers[size_t(victim)]) + " exited"), std::string::npos)
          << error.what;
      expect_within(error.elapsed_s, 1);
      longest_s = std::max(longest_s, error.elapsed_s);
    }
  }
  std::printf("covered: %d kills at random times of random programs, detected within %.2f s\n", kills,
              longest_s);
}

// Collectives only: the sender of a late message may itself wait for another rank.
TEST(StoppedRanks, AreNamedByAllOthersAtTheTimeout) {
  const int stops = is_full() ? 100 : 3;
  constexpr int kTimeoutMs = 1000;
  for (int i = 0; i < stops; ++i) {
    const int victim = (i + 1) % kRanks;
    const std::string end = std::to_string(victim) + " " + std::to_string(SIGSTOP);
    const unsigned seed = 300 + unsigned(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<Worker> workers = start_workers(scenario(seed, 200, "collectives", end), kRanks, kTimeoutMs);
    double longest_s = 0;
    for (const ParsedError& error : errors_of_others(workers, victim)) {
      EXPECT_NE(error.what.find("timed out waiting for rank " + std::to_string(victim) + " " +
                                pid_of(workers[size_t(victim)])),
                std::string::npos)
          << error.what;
      expect_within(error.elapsed_s, 2);
      longest_s = std::max(longest_s, error.elapsed_s);
    }
    EXPECT_GE(longest_s, 1);
  }
  std::printf("covered: %d permanent stops at random times of random programs\n", stops);
}

// After the skipped call, one rank is one call ahead of the others.
TEST(SkippedCall, IsAnErrorNamingBothSidesOnAllRanks) {
  constexpr int kSize = 3, kSteps = 60;
  const int skips = is_full() ? 2000 : 40;
  for (int i = 0; i < skips; ++i) {
    const int skipping = i % kSize, skipped = 10 + i % 40;
    std::vector<std::string> errors(kSize, "no error");
    on_threads(kSize, [&](int rank, const std::string& job) {
      const Groups groups = connect_world(options(job, rank, kSize));
      Mixed mixed(groups, 500 + unsigned(i), Mixed::Calls::collectives);
      try {
        for (int step = 0; step < kSteps; ++step) {
          if (rank == skipping && step == skipped) mixed.skip();
          mixed.step();
        }
      } catch (const base::CommError& error) {
        errors[size_t(rank)] = base::one_line(error);
      } catch (const std::runtime_error& error) {
        errors[size_t(rank)] = error.what();
      }
    });
    const std::regex both_sides(R"(rank (\d) (runs|sends) .*rank (\d) (runs|expects))");
    for (const std::string& error : errors) {
      std::smatch words;
      EXPECT_TRUE(std::regex_search(error, words, both_sides)) << "seed " << 500 + i << ": " << error;
      const std::string name = std::to_string(skipping);
      EXPECT_TRUE(words.empty() || (words[1] == name) != (words[3] == name)) << error;
    }
  }
  std::printf("covered: %d calls of random programs skipped by one rank\n", skips);
}

}  // namespace
}  // namespace shardwise::testing::disturbed_test
