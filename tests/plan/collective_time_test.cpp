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
    EXPECT_EQ(time.half(1e6), 0);
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
      EXPECT_LT(time(4, 1).half(bytes), time(4, 1).half(2 * bytes + 1)) << name;
      EXPECT_LT(time(4, 1).half(bytes), time(8, 1).half(bytes)) << name;
      EXPECT_LT(time(4, 1).half(bytes), time(4, 1).all_reduce(bytes)) << name;
      EXPECT_LE(time(4, 1).all_reduce(2 * bytes), 2 * time(4, 1).half(bytes)) << name;
      // One rank of each node has one port.
      const double large = 1e6 * (bytes + 1);
      EXPECT_GT(time(4, 8).half(large), time(4, 1).half(large)) << name;
    }
  }
}

TEST(CollectiveTime, OfCountedCollectivesIsTheSumOfTheCalls) {
  const CollectiveTime time(built_in_machine("h100"), {.ranks = 8});
  const Collectives counted{
      .all_reduce = {3, 3'000'000}, .all_gather = {2, 10'000}, .reduce_scatter = {1, 400}};
  EXPECT_DOUBLE_EQ(time.of(counted), 3 * time.all_reduce(1e6) + 2 * time.half(5000) + time.half(400));
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

TEST(Machine, EfficiencyOfProductsGrowsWithTheirSize) {
  for (const std::string& name : machine_names()) {
    const Machine machine = built_in_machine(name);
    double before = 0;
    for (double flop = 1e6; flop < 1e16; flop *= 1.7) {
      EXPECT_GE(machine.efficiency_of(flop), before) << name << " " << flop;
      EXPECT_LE(machine.efficiency_of(flop), 1) << name;
      before = machine.efficiency_of(flop);
    }
  }
}

TEST(Machine, EveryFigureHasASource) {
  for (const std::string& name : machine_names()) {
    const Machine m = built_in_machine(name);
    EXPECT_EQ(m.name, name);
    EXPECT_FALSE(m.efficiency_source.empty());
    for (const Figure& figure :
         {m.memory_bytes, m.reserved_bytes, m.flop_per_second_16_bit, m.flop_per_second_32_bit,
          m.memory_bytes_per_second, m.memory_efficiency, m.seconds_per_operation,
          m.within_node.bytes_per_second, m.within_node.efficiency, m.within_node.seconds_per_call,
          m.within_node.seconds_per_hop, m.across_nodes.bytes_per_second, m.across_nodes.efficiency,
          m.across_nodes.seconds_per_call, m.across_nodes.seconds_per_hop}) {
      EXPECT_GT(figure.value, 0) << name;
      EXPECT_FALSE(figure.source.empty()) << name;
    }
  }
}

TEST(Machine, RefusesUnknownNames) {
  EXPECT_THROW(built_in_machine("h1000"), c10::ValueError);
  EXPECT_THROW(built_in_machine(""), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::plan::collective_time_test
