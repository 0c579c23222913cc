// Soak tests with ranks as processes: long random programs on all groups of a mesh, and groups that are
// connected and destroyed repeatedly. Memory, descriptors, mappings and processes must not leak. `make test`
// runs samples; `make test-full` runs ten minutes and a thousand cycles.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "shardwise/base/error.h"
#include "tests/comm/mixed.h"
#include "tests/comm/process_resources.h"
#include "tests/comm/scenarios.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"
#include "tests/support/extent.h"

namespace shardwise::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// The memory that malloc may keep as fragments: at most what one step allocates, which is less than 16
/// tensors of the largest message (two inputs, their outputs and expected values, and the gathered pieces of
/// four ranks, of 8 bytes per element). A leak of one byte per step shows after that many steps.
constexpr int64_t kStepBytes = 16 * 8 * Mixed::kLargest;

/// A heap's region grows to the peak of blocks in use: those of one step and, in quarantine, those of the two
/// steps before.
Allowance allowance(int64_t heaps) {
  return {kStepBytes + kQuarantineBytes, heaps * 3 * kStepBytes};
}

/// Returns the live bytes of the heaps, after a barrier, by which peers have received all messages.
/// Collective.
int64_t live_bytes(const Groups& groups) {
  int64_t bytes = 0;
  for (const TestGroup& group : groups) group.backend->barrier({})->wait();
  for (const TestGroup& group : groups) {
    if (group.group.symmetric_heap() != nullptr) bytes += group.group.symmetric_heap()->live_bytes();
  }
  return bytes;
}

/// Returns rank 0's `value` on all ranks. Collective.
bool broadcast_flag(const comm::Group& world, bool value) {
  at::Tensor flag = at::full({1}, value ? 1 : 0, at::kInt);
  world.broadcast_(flag, 0);
  return flag.item<int>() == 1;
}

void report(const std::string& grown, const std::string& done) {
  std::cout << (grown.empty() ? "done " + done : "leaks" + grown) << std::endl;
}

}  // namespace

void run_soak(const WorkerPlace& place, std::istream& words) {
  unsigned seed = 0;
  int64_t seconds = 0, steps = 0;
  words >> seed >> seconds >> steps;
  const Groups groups = connect_mesh(options(place.job, place.rank, place.size, place.timeout_ms));
  Mixed mixed(groups, seed);
  const comm::Group& world = groups.front().group;
  constexpr int64_t kRound = 500;
  mixed.run(2 * kRound);  // allocates what lives until the end
  const int64_t live = live_bytes(groups);
  const Resources before;
  const auto start = Clock::now();
  int64_t done = 0;
  while (broadcast_flag(world, done < steps || Clock::now() - start < std::chrono::seconds(seconds))) {
    mixed.run(kRound);
    done += kRound;
  }
  const int64_t live_now = live_bytes(groups);
  std::string grown = growth(before, Resources(), allowance(std::ssize(groups)));
  if (live_now != live) grown += " live bytes " + std::to_string(live) + " -> " + std::to_string(live_now);
  report(grown, std::to_string(done) + " steps");
}

void run_cycles(const WorkerPlace& place, std::istream& words) {
  unsigned seed = 0;
  int times = 0;
  words >> seed >> times;
  const auto cycle = [&](int i) {
    const Groups groups = connect_mesh(options(place.job, place.rank, place.size, place.timeout_ms));
    Mixed(groups, seed + unsigned(i)).run(5);
  };
  for (int i = 0; i < 5; ++i) cycle(i);
  const Resources before;
  for (int i = 0; i < times; ++i) cycle(i);
  report(growth(before, Resources(), allowance(/*heaps=*/0)), std::to_string(times) + " cycles");
}

namespace {

/// Runs the scenario on four ranks, checks that all report `done` and exit, and returns rank 0's report.
std::string run_to_completion(const std::string& scenario) {
  const double limit_s = is_full() ? 3600 : kSilence;  // the workers print at their end
  const int before = children(), files = descriptors();
  std::string first;
  {
    std::vector<Worker> workers = start_workers(scenario, 4, /*timeout_ms=*/60'000);
    const std::vector<std::string> outputs = outputs_of(workers, limit_s);
    for (const std::string& output : outputs) {
      EXPECT_NE(output.find("\ndone "), std::string::npos) << output;
    }
    const size_t position = outputs[0].find("\ndone ");
    if (position != std::string::npos)
      first = outputs[0].substr(position + 6, outputs[0].find('\n', position + 6) - position - 6);
  }
  EXPECT_EQ(children(), before);
  EXPECT_EQ(descriptors(), files);
  return first;
}

TEST(Soak, RandomProgramsLeakNothing) {
  const std::string done = run_to_completion(is_full() ? "soak 21 600 20000" : "soak 21 0 2000");
  std::printf("covered: soak of mixed collectives on 4 ranks and 3 groups: %s\n", done.c_str());
}

TEST(Soak, ConnectingAndDestroyingGroupsLeaksNothing) {
  const std::string done = run_to_completion(is_full() ? "cycles 22 1000" : "cycles 22 20");
  std::printf("covered: groups of a mesh of 4 ranks connected and destroyed: %s\n", done.c_str());
}

}  // namespace
}  // namespace shardwise::testing
