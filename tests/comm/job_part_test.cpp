// Groups that are parts of a job: a failure of one rank is that of every group of every rank, and errors name
// the job's ranks. killed_ranks_test.cpp kills ranks at random.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <csignal>

#include "shardwise/base/clock.h"
#include "shardwise/comm/shm/shm.h"
#include "tests/comm/failures.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"
#include "tests/support/deadline.h"
#include "tests/support/error_text.h"

namespace shardwise::comm::job_part_test {
namespace {

using namespace shardwise::testing;

constexpr int kRanks = 4;

/// A rank's group of the whole job, and its part: ranks 0 and 2, or 1 and 3.
struct RankGroups {
  Group job, part;
};

RankGroups connect(int rank, const std::string& name) {
  const Group job = shm::connect(options(name, rank, kRanks));
  return {job, connect_part(job, name, {rank % 2, rank % 2 + 2})};
}

at::Tensor one() {
  return at::full({1}, 1.f);
}

/// Returns the error of a call that waits for a failure of another rank.
std::string failure_of(const std::function<void()>& call) {
  const base::Stopwatch clock;
  const std::string error = test::error_text<base::CommError>(call);
  expect_within(clock.seconds(), 1);
  return error;
}

TEST(PartOfAJob, HasTheFailuresOfAllRanks) {
  on_threads(kRanks, [](int rank, const std::string& name) {
    const RankGroups groups = connect(rank, name);
    EXPECT_EQ(groups.part.all_reduce(one()).item<float>(), 2);
    const std::string expected = "rank 2 aborted: it has no memory";
    if (rank == 2) groups.part.abort("it has no memory");
    // Rank 3 waits for rank 1 in their part, rank 1 for the others in the job.
    const Group& waiting = rank == 1 ? groups.job : groups.part;
    EXPECT_NE(failure_of([&] { waiting.all_reduce(one()); }).find(expected), std::string::npos);
    for (const Group* other : {&groups.job, &groups.part})
      EXPECT_NE(failure_of([&] { other->all_reduce(one()); }).find(expected), std::string::npos);
  });
}

TEST(PartOfAJob, FailsWithItsJobAsWellAsTheReverse) {
  on_threads(kRanks, [](int rank, const std::string& name) {
    const RankGroups groups = connect(rank, name);
    if (rank == 1) groups.job.abort("it stops");
    const Group& waiting = rank == 2 ? groups.job : groups.part;  // so that rank 0 waits for it
    EXPECT_NE(failure_of([&] { waiting.all_reduce(one()); }).find("rank 1 aborted: it stops"),
              std::string::npos);
  });
}

// Nobody calls the part again, whose peers would pass the failure on.
TEST(PartOfAJob, AbortsTheJobWithIt) {
  on_threads(kRanks, [](int rank, const std::string& name) {
    const RankGroups groups = connect(rank, name);
    if (rank == 2) groups.part.abort("it has no memory");
    EXPECT_NE(failure_of([&] { groups.job.all_reduce(one()); }).find("rank 2 aborted: it has no memory"),
              std::string::npos);
  });
}

// Rank 0 waits in its part for rank 1, which lives and calls nothing; nobody waits for rank 2.
TEST(PartOfAJob, NamesARankThatDiesElsewhere) {
  const std::string name = new_job();
  Worker first("part", name, 1, 3, 20'000), other("part", name, 2, 3, 20'000);
  const Group job = connect_to_workers(name, 0, 3, 20'000), part = connect_part(job, name, {0, 1});
  job.barrier();
  other.signal(SIGKILL);
  const std::string expected = "rank 2 (pid " + std::to_string(other.pid()) + ") exited",
                    error = failure_of([&] { part.all_reduce(one()); });
  EXPECT_NE(error.find(expected), std::string::npos) << error;
}

TEST(PartOfAJob, NamesTheJobsRanks) {
  on_threads(kRanks, [](int rank, const std::string& name) {
    const RankGroups groups = connect(rank, name);
    const std::string error = failure_of([&] {
      if (rank == 3) {
        groups.part.all_reduce(at::full({2}, 1.f));
      } else {
        groups.part.all_reduce(one());
        if (rank % 2 == 0) groups.part.all_gather(one(), base::Split::even("x", 2, 2));
        if (rank % 2 == 0) groups.job.all_reduce(one());
      }
    });
    EXPECT_NE(error.find("rank 1 runs"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 3 runs"), std::string::npos) << error;
  });
}

TEST(PartOfAJob, NeedsAGroupThatSharesMemoryAndARankOfItForEach) {
  shm::ConnectOptions options("alone", 0, 2);
  options.part = {Group(), {0, 1}};
  EXPECT_EQ(
      test::error_text<c10::ValueError>([&] { shm::connect(options); }),
      "connect: a part of a job needs a group that shares memory, and a rank of it for each of 2; got 2");
}

}  // namespace
}  // namespace shardwise::comm::job_part_test
