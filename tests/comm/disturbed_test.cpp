// Random programs on worker processes that are stopped and resumed at random times, and on ranks of which one
// skips a call, from fixed seeds: a late rank's results stay correct, and a skipped call is an error on all
// ranks. killed_ranks_test.cpp has the ranks that never come back.
//
// A rank delays itself between its calls (mixed.h); this process stops it inside them.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <random>
#include <regex>
#include <thread>

#include "shardwise/base/error.h"
#include "tests/comm/mixed.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"
#include "tests/support/extent.h"

namespace shardwise::testing::disturbed_test {
namespace {

constexpr int kRanks = 4;

/// Returns the last `step N` that a worker printed.
std::string last_step(const std::string& printed) {
  const size_t begin = printed.rfind("step ");
  return printed.substr(begin, printed.find('\n', begin) - begin);
}

// A rank that is stopped anywhere, before an arrival or a departure barrier, is only late.
TEST(DelayedRanks, GetCorrectResults) {
  const int stops = is_full() ? 3000 : 40;
  std::vector<Worker> workers = start_workers("mixed 31", kRanks, /*timeout_ms=*/60'000);
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
