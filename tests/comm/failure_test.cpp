// Ranks that die, stop, leave or give up: what the others are told, and how soon.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <iostream>
#include <sstream>

#include "shardwise/base/error.h"
#include "shardwise/comm/join.h"
#include "tests/comm/held.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/comm/workers.h"

namespace shardwise::testing {
namespace {

constexpr const char* kVariable = "SHARDWISE_TEST_WORKER";

void run_collective(const comm::Group& group, const std::string& name) {
  if (name == "all_reduce") {
    group.all_reduce(at::full({3000}, 1.f));
  } else if (name == "expose") {
    const auto split = base::Split::even("x", 30, group.size());
    const auto exposed = group.expose(at::full({split.range(group.rank()).size()}, 1.f), split);
    for (int peer = 0; peer < group.size(); ++peer) exposed->read(peer);
  } else {
    group.barrier();
  }
}

// Processes start slowly; a first meeting keeps that out of the timeout under test.
comm::Group meet_workers(const std::string& job, int rank, int size, int timeout_ms) {
  comm::shm::connect(options(job + "-start", rank, size));
  return comm::shm::connect(options(job, rank, size, timeout_ms));
}

void take_share(const comm::Group& group) {
  std::cout << "took " << comm::take_core_share(group) << " threads on";
  cpu_set_t processors;
  sched_getaffinity(0, sizeof(processors), &processors);
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &processors)) std::cout << " " << i;
  }
  std::cout << std::endl;
}

}  // namespace

Worker::Worker(const std::string& scenario, const std::string& job, int rank, int size, int timeout_ms) {
  std::ostringstream variable;
  variable << kVariable << "=" << scenario << " " << job << " " << rank << " " << size << " " << timeout_ms;
  std::string setting = variable.str();
  std::vector<char*> environment = {setting.data()};
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  std::string arguments[] = {"worker", "--gtest_filter=Worker.DISABLED_Run",
                             "--gtest_also_run_disabled_tests"};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  int ends[2];
  TORCH_CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  TORCH_CHECK(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, environment.data()) == 0,
              "spawn");
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  pipe_ = ends[0];
}

Worker::~Worker() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(pipe_);
}

void Worker::signal(int number) const {
  kill(pid_, number);
}

std::string Worker::output() {
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(pipe_, buffer, sizeof(buffer))) > 0;) text.append(buffer, size_t(n));
  return text;
}

TEST(Worker, DISABLED_Run) {
  ASSERT_NE(getenv(kVariable), nullptr) << "run by the tests below";
  std::istringstream words(getenv(kVariable));
  std::string scenario, job;
  int rank = 0, size = 0, timeout_ms = 0;
  words >> scenario >> job >> rank >> size >> timeout_ms;
  try {
    const comm::Group group = meet_workers(job, rank, size, timeout_ms);
    if (scenario == "exit" || scenario == "leave" || scenario == "idle") group.barrier();
    while (scenario == "idle") pause();
    if (scenario == "exit") _exit(0);
    if (scenario == "share") take_share(group);
    while (scenario != "leave" && scenario != "share") run_collective(group, scenario);
  } catch (const base::CommError& error) {
    std::cout << base::one_line(error) << std::endl;
  }
}

}  // namespace shardwise::testing

namespace shardwise::comm {
namespace {

using namespace shardwise::testing;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Repeats the collective until it fails.
base::CommError::Where until_error(const Group& group, const std::string& collective, std::string& text) {
  while (true) {
    try {
      run_collective(group, collective);
    } catch (const base::CommError& error) {
      text = base::one_line(error);
      return error.where();
    }
  }
}

std::string gone(const Worker& worker, int rank) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(worker.pid()) + ") is gone";
}

class KilledRank : public ::testing::TestWithParam<const char*> {};

TEST_P(KilledRank, IsNamedByEverySurvivorInASecond) {
  const std::string job = new_job();
  Worker first(GetParam(), job, 1, 3, 20'000), second(GetParam(), job, 2, 3, 20'000);
  const Group group = meet_workers(job, 0, 3, 20'000);
  for (int i = 0; i < 20; ++i) run_collective(group, GetParam());
  first.signal(SIGKILL);
  const auto killed = Clock::now();
  std::string text;
  const base::CommError::Where where = until_error(group, GetParam(), text);
  EXPECT_LT(seconds_since(killed), 1);
  EXPECT_EQ(where.peer, 1);
  EXPECT_EQ(where.op, GetParam());
  EXPECT_EQ(where.rank, 0);
  EXPECT_GT(where.sequence, 20u);
  EXPECT_NE(text.find(gone(first, 1)), std::string::npos) << text;
  EXPECT_NE(second.output().find(gone(first, 1)), std::string::npos);
}

/// Meets two workers, and goes on until one of them, killed, is missed.
void survive(const std::string& collective) {
  const std::string job = new_job();
  Worker first(collective, job, 1, 3, 20'000), second(collective, job, 2, 3, 20'000);
  const Group group = meet_workers(job, 0, 3, 20'000);
  run_collective(group, collective);
  const int files = descriptors();
  first.signal(SIGKILL);
  std::string text;
  until_error(group, collective, text);
  EXPECT_LE(descriptors(), files);
}

TEST_P(KilledRank, LeavesNothingWithASurvivor) {
  const int regions = mapped_regions();
  survive(GetParam());
  const int files = descriptors();  // by now the process has opened what it opens once
  for (int i = 0; i < 3; ++i) survive(GetParam());
  EXPECT_EQ(descriptors(), files);
  EXPECT_EQ(mapped_regions(), regions);
}

INSTANTIATE_TEST_SUITE_P(While, KilledRank, ::testing::Values("all_reduce", "expose"));

TEST(StoppedRank, IsLateAfterTheGroupsTimeout) {
  const std::string job = new_job();
  Worker worker("all_reduce", job, 1, 2, 20'000);
  const Group group = meet_workers(job, 0, 2, /*timeout_ms=*/500);
  run_collective(group, "all_reduce");
  worker.signal(SIGSTOP);
  std::string text;
  const base::CommError::Where where = until_error(group, "all_reduce", text);
  EXPECT_EQ(where.peer, 1);
  EXPECT_GE(where.elapsed_s, 0.5);
  EXPECT_LT(where.elapsed_s, 1.5);
  EXPECT_EQ(where.limit_s, 0.5);
  EXPECT_NE(text.find("rank 1 (pid " + std::to_string(worker.pid()) + ") did not come"), std::string::npos)
      << text;
}

TEST(LeavingRank, IsAnErrorOnlyForThoseWhoStillNeedIt) {
  for (const char* scenario : {"leave", "exit"}) {
    const std::string job = new_job();
    Worker worker(scenario, job, 1, 2, 20'000);
    const Group group = meet_workers(job, 0, 2, 20'000);
    group.barrier();
    std::string text;
    EXPECT_EQ(until_error(group, "barrier", text).sequence, 2u);
    EXPECT_NE(text.find(std::string(") ") + (scenario[0] == 'l' ? "left" : "is gone")), std::string::npos)
        << text;
  }
}

TEST(Abort, EndsAWaitingPeerAndEverythingAfter) {
  on_threads(3, [&](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, 3));
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      group.abort("the loss is not finite");
    }
    const auto start = Clock::now();
    for (int i = 0; i < 3; ++i) {
      std::string text;
      EXPECT_EQ(until_error(group, "all_reduce", text).peer, 0);
      EXPECT_NE(text.find("rank 0 aborted: the loss is not finite"), std::string::npos) << text;
    }
    EXPECT_LT(seconds_since(start), 1);
  });
}

}  // namespace
}  // namespace shardwise::comm
