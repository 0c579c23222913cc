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

// A machine of round figures: 100 bytes/s in a node of four, 10 between nodes; 5 s a call and 1 s a hop.
Machine round_machine(Algorithm algorithm) {
  Machine machine;
  machine.devices_per_node = 4;
  machine.within_node = {{200, "here"}, {0.5, "here"}, {5, "here"}, {1, "here"}, {0.25, "here"}};
  machine.across_nodes = {{10, "here"}, {1, "here"}, {5, "here"}, {1, "here"}, {0.125, "here"}};
  machine.algorithm = algorithm;
  return machine;
}

TEST(CollectiveTime, IsThatOfTheNamedAlgorithm) {
  const auto in_node = [](Algorithm algorithm) {
    return CollectiveTime(round_machine(algorithm), {.ranks = 4});
  };
  // 300 bytes at 100 a second; 2 · 3, 2, and 2 log₂ 4 hops. Trees send 4/3 of a ring's bytes.
  EXPECT_DOUBLE_EQ(in_node(Algorithm::ring).all_reduce(300), 5 + 6 + 3);
  EXPECT_DOUBLE_EQ(in_node(Algorithm::two_shot).all_reduce(300), 5 + 2 + 3);
  EXPECT_DOUBLE_EQ(in_node(Algorithm::tree).all_reduce(300), 5 + 4 + 4);
  for (const bool gathers : {false, true}) {
    const auto half = [&](Algorithm algorithm) {
      return gathers ? in_node(algorithm).all_gather(300) : in_node(algorithm).reduce_scatter(300);
    };
    EXPECT_DOUBLE_EQ(half(Algorithm::ring), 5 + 3 + 3);
    EXPECT_DOUBLE_EQ(half(Algorithm::two_shot), 5 + 1 + 3);
    EXPECT_DOUBLE_EQ(half(Algorithm::tree), 5 + 3 + 3);  // a ring's
  }
  // Two nodes: of 700 bytes to seven others 400 leave the node, over the rank's port of 10 a second; a ring
  // uses the ports of all four ranks.
  const auto across = [](Algorithm algorithm) {
    return CollectiveTime(round_machine(algorithm), {.ranks = 8});
  };
  EXPECT_DOUBLE_EQ(across(Algorithm::two_shot).all_reduce(700), 5 + 2 + 40);
  EXPECT_DOUBLE_EQ(across(Algorithm::ring).all_reduce(700), 5 + 14 + 700.0 / 40);
  EXPECT_DOUBLE_EQ(across(Algorithm::tree).all_reduce(700), 5 + 6 + 800.0 / 40);
}

TEST(CollectiveTime, TakesTheArithmeticOfItsLink) {
  EXPECT_EQ(CollectiveTime(round_machine(Algorithm::ring), {.ranks = 4}).processor_share(), 0.25);
  EXPECT_EQ(CollectiveTime(round_machine(Algorithm::ring), {.ranks = 8}).processor_share(), 0.125);
}

TEST(Algorithms, HaveNames) {
  for (const char* name : {"ring", "two-shot", "tree"}) EXPECT_EQ(name_of(algorithm_of(name)), name);
  EXPECT_THROW(algorithm_of("butterfly"), c10::ValueError);
}

TEST(CollectiveTime, RefusesGroupsBeyondTheOnlyNode) {
  Machine machine = built_in_machine("h100");
  machine.across_nodes.reset();
  EXPECT_GT(CollectiveTime(machine, {.ranks = 8}).all_reduce(1), 0);
  EXPECT_THROW(CollectiveTime(machine, {.ranks = 16}), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::plan::collective_time_test
