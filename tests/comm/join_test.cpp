// Ranks that find their group by where they stand, on one host and on pretended ones.
#include "shardwise/comm/join.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "shardwise/base/error.h"
#include "shardwise/comm/affinity.h"
#include "shardwise/comm/mesh.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"

namespace shardwise::comm::join_test {
namespace {

using namespace shardwise::testing;

LaunchContext place_of(int rank, int hosts, const std::string& job) {
  LaunchContext place;
  place.launcher = LaunchContext::Launcher::launcher;
  place.rank = rank;
  place.world_size = 4;
  place.hosts = hosts;
  place.host = place.node_of(rank);
  place.job = job;
  return place;
}

Mesh mesh_of(const LaunchContext& place) {
  return Mesh({{"dp", 2}, {"tp", 2}}, place.rank, place.world_size,
              [place](const std::string& axis, const std::vector<int>& ranks) {
                return connect(place, axis, ranks, std::chrono::seconds(20));
              });
}

float sum(const Group& group, int rank) {
  return group.all_reduce(at::full({1}, float(1 << rank))).item<float>();
}

TEST(Join, OneHostJoinsEveryAxis) {
  on_threads(4, [](int rank, const std::string& job) {
    const LaunchContext place = place_of(rank, /*hosts=*/1, job);
    Mesh mesh = mesh_of(place);
    EXPECT_EQ(sum(mesh.group("tp"), rank), rank < 2 ? 3 : 12);
    EXPECT_EQ(sum(mesh.group("dp"), rank), rank % 2 == 0 ? 5 : 10);
    EXPECT_EQ(sum(init_process_group(place), rank), 15);
  });
}

TEST(Join, GroupsAcrossPretendedHostsNeedMpirun) {
  on_threads(4, [](int rank, const std::string& job) {
    const LaunchContext place = place_of(rank, /*hosts=*/2, job);
    Mesh mesh = mesh_of(place);
    EXPECT_EQ(sum(mesh.group("tp"), rank), rank < 2 ? 3 : 12);
    try {
      mesh.group("dp");
      ADD_FAILURE() << "joined";
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(
          base::one_line(error),
          "launch: ranks of several hosts are started by Open MPI's mpirun; got 2 ranks of group dp on 2 "
          "hosts (SHARDWISE_NODES); unset it, or run mpirun with -n 4");
    }
    EXPECT_THROW(init_process_group(place), c10::ValueError);
  });
}

TEST(Join, OneRankWaitsForNobody) {
  EXPECT_EQ(init_process_group(LaunchContext()).size(), 1);
  EXPECT_EQ(connect(place_of(3, /*hosts=*/4, "alone"), "tp", {3}).size(), 1);
}

TEST(Join, TheTimeoutIsThatOfTheWaits) {
  const LaunchContext place = place_of(0, /*hosts=*/1, new_job());
  try {
    init_process_group(place, std::chrono::milliseconds(50));
    ADD_FAILURE() << "joined";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().limit_s, 0.05);
  }
}

/// What a worker in the scenario "share" says: the threads it took, and its processors.
std::pair<int, std::set<int>> share_of(Worker& worker) {
  const std::string output = worker.output();
  std::istringstream words(output.substr(std::min(output.find("took "), output.size())));
  std::string word;
  int threads = 0;
  words >> word >> threads >> word >> word;
  std::set<int> processors;
  for (int processor; words >> processor;) processors.insert(processor);
  return {threads, processors};
}

TEST(Join, TheRanksOfAHostShareOutItsCores) {
  const std::string job = new_job();
  Worker first("share", job, 0, 2, 20'000), second("share", job, 1, 2, 20'000);
  const auto [threads, low] = share_of(first);
  const auto [same_threads, high] = share_of(second);
  const Allowance& all = own_allowance();
  EXPECT_EQ(threads, share_out({all, all}, 0).threads);
  EXPECT_EQ(same_threads, threads);
  const bool can_share = std::min(all.cores, all.quota) >= 2;
  std::set<int> both = low;
  both.insert(high.begin(), high.end());
  EXPECT_EQ(int(both.size()), CPU_COUNT(&all.processors));
  EXPECT_EQ(low.size() + high.size(), both.size() * (can_share ? 1 : 2));
}

}  // namespace
}  // namespace shardwise::comm::join_test
