// The choice of the number of ranks of one host: by time, within its memory, with pins.
#include "shardwise/plan/host_search.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/plan/synthetic_machine.h"

namespace shardwise::plan::host_search_test {
namespace {

/// A host on which one rank is as fast as all ranks together.
Host host_of(const std::vector<int64_t>& ranks, double seconds_per_call) {
  Host host{.memory_bytes = int64_t{1} << 40};
  for (const int64_t count : ranks)
    host.machines.emplace(count,
                          synthetic_machine(count, 8e10 / static_cast<double>(count), seconds_per_call));
  return host;
}

/// A host whose ranks are as fast as they are alone.
Host scaling_host(const std::vector<int64_t>& ranks, double seconds_per_call) {
  Host host{.memory_bytes = int64_t{1} << 40};
  for (const int64_t count : ranks)
    host.machines.emplace(count, synthetic_machine(count, 1e10, seconds_per_call));
  return host;
}

TrainingTask training(int64_t batch_size = 4) {
  return {.config = config::preset("small"),
          .sequence_length = 256,
          .batch_size = batch_size,
          .element_bytes = 4};
}

/// Tensor parallelism alone, and micro-batches of the whole batch.
Pins whole_batch(int64_t batch_size = 4) {
  return {.cp = 1, .pp = 1, .dp = 1, .ep = 1, .micro_batch_size = batch_size};
}

/// The axes that one host's ranks can split, without recomputation.
Pins trained_axes() {
  return {.cp = 1, .ep = 1, .zero = ZeroStage::optimizer, .recompute = Recompute::none};
}

InferenceTask inference() {
  return {.config = config::preset("small"), .prompt_tokens = 64, .new_tokens = 16, .element_bytes = 4};
}

TEST(RanksToCompare, ArePowersOfTwoAndTheMost) {
  using Ranks = std::vector<int64_t>;
  EXPECT_EQ(ranks_to_compare(0), Ranks{1});
  EXPECT_EQ(ranks_to_compare(1), Ranks{1});
  EXPECT_EQ(ranks_to_compare(2), (Ranks{1, 2}));
  EXPECT_EQ(ranks_to_compare(6), (Ranks{1, 2, 4, 6}));
  EXPECT_EQ(ranks_to_compare(12), (Ranks{1, 2, 4, 8, 12}));
  EXPECT_EQ(ranks_to_compare(16), (Ranks{1, 2, 4, 8, 16}));
}

TEST(HostSearch, TakesMoreRanksWhereCommunicationIsFree) {
  EXPECT_EQ(search_host(training(), scaling_host({1, 2, 4}, 0), {whole_batch()}).plans.front().degrees.tp, 4);
  EXPECT_EQ(search_host(inference(), scaling_host({1, 2, 4}, 0)).plans.front().degrees.tp, 4);
}

TEST(HostSearch, TakesOneRankWhereCommunicationIsDear) {
  for (const Host& host : {scaling_host({1, 2, 4}, /*seconds_per_call=*/10), host_of({1, 2, 4}, 1e-3)}) {
    EXPECT_EQ(search_host(training(), host, {whole_batch()}).plans.front().degrees.tp, 1);
    EXPECT_EQ(search_host(inference(), host).plans.front().degrees.tp, 1);
  }
}

TEST(HostSearch, GivesThePlansOfEveryNumberOfRanksByTime) {
  const Host host = scaling_host({1, 2, 3}, 1e-4);
  const SearchResult found = search_host(training(), host, {whole_batch()});
  std::multiset<int64_t> ranks;
  double before = 0;
  for (const TrainingPlan& plan : found.plans) {
    EXPECT_GE(plan.time.total(), before);
    before = plan.time.total();
    EXPECT_EQ(plan.degrees.pp * plan.degrees.dp, 1);
    EXPECT_EQ(plan.degrees.micro_batch_size, 4);
    ranks.insert(plan.degrees.tp);
    const double alone = TrainingPlanner(
                             [&] {
                               TrainingTask task = training();
                               task.ranks = plan.degrees.tp;
                               return task;
                             }(),
                             host.machines.at(plan.degrees.tp))
                             .evaluate(plan.degrees)
                             .time.total();
    EXPECT_DOUBLE_EQ(plan.time.total(), alone);
  }
  // Three modes of recomputation; with several ranks, with and without sequence parallelism.
  EXPECT_EQ(ranks, (std::multiset<int64_t>{1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3}));
  EXPECT_TRUE(found.refused.empty());
}

TEST(HostSearch, TheHostsMemoryForcesRecomputation) {
  Host host = host_of({1}, 0);
  const SearchResult ample = search_host(training(16), host, {whole_batch(16)});
  ASSERT_EQ(ample.plans.size(), 3u);
  EXPECT_EQ(ample.plans.front().degrees.recompute, Recompute::none);
  const auto bytes_of = [&](Recompute recompute) {
    for (const TrainingPlan& plan : ample.plans)
      if (plan.degrees.recompute == recompute) return plan.memory.total();
    return int64_t{0};
  };
  host.memory_bytes = bytes_of(Recompute::none) - 1;
  EXPECT_EQ(search_host(training(16), host, {whole_batch(16)}).plans.front().degrees.recompute,
            Recompute::selective);
  host.rank_cap = bytes_of(Recompute::full);
  const SearchResult least = search_host(training(16), host, {whole_batch(16)});
  ASSERT_EQ(least.plans.size(), 1u);
  EXPECT_EQ(least.plans.front().degrees.recompute, Recompute::full);
  ASSERT_EQ(least.refused.size(), 2u);
  for (const Refused& refused : least.refused) EXPECT_GT(refused.needed_bytes, *host.rank_cap);
}

// Two ranks have half of the host's memory each.
TEST(HostSearch, RanksShareTheHostsMemory) {
  Host host = scaling_host({1, 2}, 0);
  const SearchResult ample = search_host(training(), host, {whole_batch()});
  int64_t most = 0;
  for (const TrainingPlan& plan : ample.plans)
    if (plan.degrees.tp == 2) most = std::max(most, plan.memory.total());
  host.memory_bytes = 2 * most - 1;
  const SearchResult found = search_host(training(), host, {whole_batch()});
  EXPECT_EQ(found.plans.size() + found.refused.size(), ample.plans.size());
  EXPECT_GT(found.refused.size(), 0u);
  host.memory_bytes = 1000;
  EXPECT_TRUE(search_host(training(), host, {whole_batch()}).plans.empty());
  const InferenceSearchResult none = search_host(inference(), host);
  EXPECT_TRUE(none.plans.empty());
  ASSERT_EQ(none.refused.size(), 2u);
  EXPECT_GT(none.refused[0].needed_bytes, none.refused[1].needed_bytes);
}

TEST(HostSearch, KeepsPins) {
  Pins pins = whole_batch();
  pins.recompute = Recompute::selective;
  pins.sequence_parallel = false;
  const SearchResult found = search_host(training(), scaling_host({1, 2}, 0), {pins});
  ASSERT_EQ(found.plans.size(), 2u);
  for (const TrainingPlan& plan : found.plans) {
    EXPECT_EQ(plan.degrees.recompute, Recompute::selective);
    EXPECT_TRUE(plan.degrees.tp == 1 || !plan.degrees.has_sequence_parallel);
  }
  pins.sequence_parallel = true;
  for (const TrainingPlan& plan : search_host(training(), scaling_host({2}, 0), {pins}).plans)
    EXPECT_TRUE(plan.degrees.has_sequence_parallel);
}

TEST(HostSearch, TriesEveryAxis) {
  std::set<std::tuple<int64_t, int64_t, int64_t>> tried;  // tp, pp and dp
  for (const TrainingPlan& plan :
       search_host(training(8), scaling_host({1, 2, 4}, 0), {trained_axes()}).plans)
    tried.emplace(plan.degrees.tp, plan.degrees.pp, plan.degrees.dp);
  const std::set<std::tuple<int64_t, int64_t, int64_t>> all{{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2},
                                                            {4, 1, 1}, {1, 4, 1}, {1, 1, 4}, {2, 2, 1},
                                                            {2, 1, 2}, {1, 2, 2}};
  EXPECT_EQ(tried, all);
}

// Tensor parallelism calls several collectives in each layer and micro-batch; replicas few in a step.
TEST(HostSearch, TakesReplicasWhereCallsAreDear) {
  const Degrees best =
      search_host(training(8), scaling_host({1, 2}, /*seconds_per_call=*/1e-3), {trained_axes()})
          .plans[0]
          .degrees;
  EXPECT_EQ(best.tp, 1);
  EXPECT_EQ(best.dp, 2);
}

// Of the pinned axes' ranks there are only multiples.
TEST(HostSearch, KeepsPinsOfAxes) {
  Pins pins = trained_axes();
  pins.pp = 2;
  pins.chunks = 2;
  const SearchResult found = search_host(training(8), scaling_host({2, 4}, 0), {pins});
  std::set<int64_t> replicas;
  for (const TrainingPlan& plan : found.plans) {
    EXPECT_EQ(plan.degrees.pp, 2);
    EXPECT_EQ(plan.degrees.chunks, 2);
    EXPECT_EQ(plan.degrees.micro_batches(8) % 2, 0);  // of an interleaved schedule
    replicas.insert(plan.degrees.dp);
  }
  EXPECT_EQ(replicas, (std::set<int64_t>{1, 2}));
  // A replica's one micro-batch cannot interleave.
  pins.micro_batch_size = 8;
  const SearchResult none = search_host(training(8), scaling_host({2}, 0), {pins});
  EXPECT_TRUE(none.plans.empty());
  ASSERT_EQ(none.refused.size(), 1u);
  EXPECT_EQ(none.refused[0].reason,
            "2 chunks a stage need blocks that 4 divides, and a multiple of 2 micro-batches");
}

TEST(HostSearch, RefusesBadInput) {
  EXPECT_THROW(search_host(training(0), scaling_host({1}, 0), {Pins()}), c10::ValueError);
  Host host = scaling_host({2}, 0);
  host.memory_bytes = 1;  // none for each
  EXPECT_THROW(search_host(training(), host, {whole_batch()}), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::plan::host_search_test
