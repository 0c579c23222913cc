// Rules that the times of any algorithm's collectives obey; published_test.cpp compares measured ones.
#include "shardwise/plan/collective_time.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace shardwise::plan::collective_time_test {
namespace {

TEST(CollectiveTime, OfOneRankIsZero) {
  for (const std::string& name : machine_names()) {
    const CollectiveTime time(built_in_machine(name), {.ranks = 1});
    EXPECT_EQ(time.all_reduce(1e6), 0);
    EXPECT_EQ(time.all_gather(1e6), 0);
    EXPECT_EQ(time.reduce_scatter(1e6), 0);
    EXPECT_EQ(time.send(1e6), 0);
  }
}

TEST(CollectiveTime, GrowsWithBytesAndRanksAndAcrossNodes) {
  for (const std::string& name : machine_names()) {
    const Machine machine = built_in_machine(name);
    const auto time = [&](int64_t ranks, int64_t stride) {
      return CollectiveTime(machine, {.ranks = ranks, .stride = stride});
    };
    for (const double bytes : {0.0, 1e3, 1e6, 1e9}) {
      EXPECT_LT(time(4, 1).all_gather(bytes), time(4, 1).all_gather(2 * bytes + 1)) << name;
      EXPECT_LT(time(4, 1).all_gather(bytes), time(8, 1).all_gather(bytes)) << name;
      EXPECT_LT(time(4, 1).all_gather(bytes), time(4, 1).all_reduce(bytes)) << name;
      EXPECT_LE(time(4, 1).all_reduce(2 * bytes), 2 * time(4, 1).all_gather(bytes)) << name;
      // One rank of each node has one port.
      const double large = 1e6 * (bytes + 1);
      EXPECT_GT(time(4, 8).all_gather(large), time(4, 1).all_gather(large)) << name;
    }
  }
}

TEST(CollectiveTime, OfCountedCollectivesIsTheSumOfTheCalls) {
  const CollectiveTime time(built_in_machine("h100"), {.ranks = 8});
  const Collectives counted{
      .all_reduce = {3, 3'000'000}, .all_gather = {2, 10'000}, .reduce_scatter = {1, 400}};
  EXPECT_DOUBLE_EQ(time.of(counted),
                   3 * time.all_reduce(1e6) + 2 * time.all_gather(5000) + time.reduce_scatter(400));
}

TEST(RanksOfANode, AreConsecutive) {
  const Machine machine = built_in_machine("h100");
  const auto in_node = [&](int64_t ranks, int64_t stride) {
    return RankGroup{.ranks = ranks, .stride = stride}.ranks_in_node(machine);
  };
  EXPECT_EQ(in_node(8, 1), 8);
  EXPECT_EQ(in_node(16, 1), 8);
  EXPECT_EQ(in_node(4, 2), 4);
  EXPECT_EQ(in_node(16, 2), 4);
  EXPECT_EQ(in_node(16, 8), 1);
  EXPECT_EQ(in_node(16, 64), 1);
  EXPECT_FALSE((RankGroup{.ranks = 4, .stride = 2}.crosses_nodes(machine)));
  EXPECT_TRUE((RankGroup{.ranks = 8, .stride = 2}.crosses_nodes(machine)));
}

TEST(CollectiveTime, IsAsMeasuredAmongAsManyRanksOfANode) {
  Machine machine = built_in_machine("h100");
  const auto constant = [](double seconds) { return Rate({{1, 1 / seconds}}, "here"); };
  machine.collectives = MeasuredCollectives{4, constant(4), constant(5), constant(6)};
  const CollectiveTime measured(machine, {.ranks = 4});
  EXPECT_DOUBLE_EQ(measured.all_reduce(1), 4);
  EXPECT_DOUBLE_EQ(measured.all_gather(1), 5);
  EXPECT_DOUBLE_EQ(measured.reduce_scatter(2), 12);
  for (const RankGroup& other : {RankGroup{.ranks = 8}, RankGroup{.ranks = 4, .stride = 8}}) {
    const CollectiveTime without(built_in_machine("h100"), other);
    EXPECT_EQ(CollectiveTime(machine, other).all_reduce(1e6), without.all_reduce(1e6));
  }
}

TEST(CollectiveTime, RefusesGroupsBeyondTheOnlyNode) {
  Machine machine = built_in_machine("h100");
  machine.across_nodes.reset();
  EXPECT_GT(CollectiveTime(machine, {.ranks = 8}).all_reduce(1), 0);
  EXPECT_THROW(CollectiveTime(machine, {.ranks = 16}), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::plan::collective_time_test
