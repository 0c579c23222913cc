// Long runs of mixed collectives by ranks as processes, on all groups of a mesh, and groups that are made and
// dropped again and again: nothing of memory, descriptors, mappings or processes stays behind. Samples in
// `make test`; ten minutes and a thousand times in `make test-full`.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "shardwise/base/error.h"
#include "tests/comm/held.h"
#include "tests/comm/mixed.h"
#include "tests/comm/scenarios.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"
#include "tests/support/extent.h"

namespace shardwise::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// What malloc may keep in pieces between what lives: no more than all that one step ever held, which is less
/// than 16 tensors of the largest message (two inputs, their targets and closed forms, and the gathered
/// pieces of four ranks, of 8 bytes each). A leak of a byte a step shows after that many steps.
constexpr int64_t kStepBytes = 16 * 8 * Mixed::kLargest;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Freed memory waits in the sanitizer's quarantine, of 256 MB by default.
constexpr int64_t kAllowance = kStepBytes + (256 << 20);
#else
constexpr int64_t kAllowance = kStepBytes;
#endif

/// What a process holds.
struct Holding {
  int descriptors = testing::descriptors();
  int regions = mapped_regions();
  int children = testing::children();
  std::set<std::string> named = named_memory();
  int64_t private_bytes = testing::private_bytes();
  int64_t region_bytes = testing::region_bytes();
};

/// What it holds more than before; empty when that is nothing. A heap's region grows to the most that was
/// ever in use at once: the blocks of one step and, in quarantine, those of the two before.
std::string growth(const Holding& before, const Holding& now, int64_t heaps) {
  std::ostringstream text;
  const auto say = [&](const char* what, int64_t old, int64_t current) {
    text << " " << what << " " << old << " -> " << current;
  };
  if (now.descriptors > before.descriptors) say("descriptors", before.descriptors, now.descriptors);
  if (now.regions > before.regions) say("regions", before.regions, now.regions);
  if (now.children > before.children) say("children", before.children, now.children);
  if (now.named != before.named) say("named memory", int64_t(before.named.size()), int64_t(now.named.size()));
  if (now.private_bytes > before.private_bytes + kAllowance)
    say("private bytes", before.private_bytes, now.private_bytes);
  if (now.region_bytes > before.region_bytes + heaps * 3 * kStepBytes)
    say("region bytes", before.region_bytes, now.region_bytes);
  return text.str();
}

/// Collective: of the heaps, when the last messages were taken and their memory was given back.
int64_t live_bytes(const Groups& groups) {
  int64_t bytes = 0;
  for (const Joined& joined : groups) joined.backend->barrier({})->wait();
  for (const Joined& joined : groups) {
    if (joined.group.symmetric_heap() != nullptr) bytes += joined.group.symmetric_heap()->live_bytes();
  }
  return bytes;
}

/// Collective: what rank 0 has to say.
bool agreed(const comm::Group& world, bool says) {
  at::Tensor word = at::full({1}, says ? 1 : 0, at::kInt);
  world.broadcast_(word, 0);
  return word.item<int>() == 1;
}

void report(const std::string& grown, const std::string& done) {
  std::cout << (grown.empty() ? "done " + done : "leaks" + grown) << std::endl;
}

}  // namespace

void run_soak(const WorkerPlace& place, std::istream& words) {
  unsigned seed = 0;
  int64_t seconds = 0, steps = 0;
  words >> seed >> seconds >> steps;
  const Groups groups = join_mesh(options(place.job, place.rank, place.size, place.timeout_ms));
  Mixed mixed(groups, seed);
  const comm::Group& world = groups.front().group;
  constexpr int64_t kRound = 500;
  mixed.run(2 * kRound);  // what is made once
  const int64_t live = live_bytes(groups);
  const Holding before;
  const auto start = Clock::now();
  int64_t done = 0;
  while (agreed(world, done < steps || Clock::now() - start < std::chrono::seconds(seconds))) {
    mixed.run(kRound);
    done += kRound;
  }
  const int64_t live_now = live_bytes(groups);
  std::string grown = growth(before, Holding(), std::ssize(groups));
  if (live_now != live) grown += " live bytes " + std::to_string(live) + " -> " + std::to_string(live_now);
  report(grown, std::to_string(done) + " steps");
}

void run_cycles(const WorkerPlace& place, std::istream& words) {
  unsigned seed = 0;
  int times = 0;
  words >> seed >> times;
  const auto cycle = [&](int i) {
    const Groups groups = join_mesh(options(place.job, place.rank, place.size, place.timeout_ms));
    Mixed(groups, seed + unsigned(i)).run(5);
  };
  for (int i = 0; i < 5; ++i) cycle(i);
  const Holding before;
  for (int i = 0; i < times; ++i) cycle(i);
  report(growth(before, Holding(), /*heaps=*/0), std::to_string(times) + " cycles");
}

namespace {

/// Starts the scenario on four ranks; all must be done, and gone. Returns what rank 0 says.
std::string run_to_the_end(const std::string& scenario) {
  const int before = children(), files = descriptors();
  std::string first;
  {
    std::vector<Worker> workers = start_workers(scenario, 4, /*timeout_ms=*/60'000);
    const std::vector<std::string> outputs = outputs_of(workers);
    for (const std::string& output : outputs) {
      EXPECT_NE(output.find("\ndone "), std::string::npos) << output;
    }
    const size_t said = outputs[0].find("\ndone ");
    if (said != std::string::npos)
      first = outputs[0].substr(said + 6, outputs[0].find('\n', said + 6) - said - 6);
  }
  EXPECT_EQ(children(), before);
  EXPECT_EQ(descriptors(), files);
  return first;
}

TEST(Soak, OfMixedCollectivesLeavesNothingBehind) {
  const std::string done = run_to_the_end(is_full() ? "soak 21 600 20000" : "soak 21 0 2000");
  std::printf("covered: soak of mixed collectives on 4 ranks and 3 groups: %s\n", done.c_str());
}

TEST(Soak, OfGroupsMadeAndDroppedLeavesNothingBehind) {
  const std::string done = run_to_the_end(is_full() ? "cycles 22 1000" : "cycles 22 20");
  std::printf("covered: groups of a mesh of 4 ranks made and dropped: %s\n", done.c_str());
}

}  // namespace
}  // namespace shardwise::testing
