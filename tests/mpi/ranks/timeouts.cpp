// Errors of ranks that are alive but late: the rank named, and after which of the group's limits. These tests
// break groups, as those of failures.cpp do.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <thread>

#include "shardwise/base/error.h"
#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/mpi/mpi.h"
#include "tests/mpi/ranks/ranks.h"
#include "tests/support/deadline.h"

namespace shardwise::comm::timeouts_test {
namespace {

using namespace shardwise::testing;
using mpi::Topology;

class TimeoutFailures : public ::testing::TestWithParam<Topology> {
 protected:
  static Group new_group(int timeout_s = 20) {
    return mpi::connect(new_options(GetParam(), std::chrono::seconds(timeout_s)));
  }
};

/// Expects that the ranks name rank 1, which is alive but does not call the collective, after the group's
/// timeout of 1 s. Rank 1 gets their error.
void expect_late_rank_named(const Group& group) {
  group.barrier();
  if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  try {
    group.all_reduce(at::full({5000}, 1.f));
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().rank, group.rank());
    EXPECT_NE(base::one_line(error).find("timed out waiting for rank"), std::string::npos)
        << base::one_line(error);
    if (group.rank() == 1) return;
    EXPECT_EQ(error.where().op, "all_reduce");
    EXPECT_EQ(error.where().peer, 1);
    EXPECT_EQ(error.where().sequence, 2u);
    EXPECT_EQ(error.where().limit_s, 1);
    expect_within(error.where().elapsed_s, 2);
  }
}

TEST_P(TimeoutFailures, ALateRankIsNamedAtTheTimeout) {
  expect_late_rank_named(new_group(/*timeout_s=*/1));
}

TEST_P(TimeoutFailures, TheTimeoutCanBeSetLater) {
  const Group group = new_group();
  group.backend()->set_timeout(std::chrono::seconds(1));
  EXPECT_EQ(group.backend()->timeout(), std::chrono::seconds(1));
  expect_late_rank_named(group);
}

TEST_P(TimeoutFailures, CollectivesMayHaveALimitOfTheirOwn) {
  const Group group = new_group();
  group.backend()->limit_collectives(std::chrono::seconds(1));
  EXPECT_EQ(group.backend()->timeout(), std::chrono::seconds(20));
  expect_late_rank_named(group);
}

INSTANTIATE_TEST_SUITE_P(Topologies, TimeoutFailures,
                         ::testing::Values(Topology::flat, Topology::hierarchical), [](const auto& topology) {
                           return topology.param == Topology::flat ? "flat" : "hierarchical";
                         });

// Ranks arrive 1.3 s apart: the wait for rank 1 uses up part of the timeout for rank 2.
TEST(LateRanks, OneTimeoutLimitsTheWaitForAllPeers) {
  const Group group = mpi::connect(new_options(Topology::flat, std::chrono::seconds(2)));
  ASSERT_EQ(group.size(), 3);
  group.barrier();
  std::this_thread::sleep_for(std::chrono::milliseconds(1300) * group.rank());
  try {
    group.barrier();
    group.barrier();  // rank 2, for which all announcements had arrived, fails here
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().peer, 2) << base::one_line(error);
    EXPECT_NE(base::one_line(error).find("timed out waiting for rank 2"), std::string::npos);
    EXPECT_GE(error.where().elapsed_s, group.rank() == 0 ? 2 : 0);
  }
}

}  // namespace
}  // namespace shardwise::comm::timeouts_test
