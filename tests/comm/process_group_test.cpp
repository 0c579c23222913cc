// Groups made from a LaunchContext, on one node and on simulated nodes.
#include "shardwise/launch/process_group.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "shardwise/base/error.h"
#include "shardwise/comm/mesh.h"
#include "shardwise/launch/affinity.h"
#include "tests/comm/raw_socket.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"

namespace shardwise::launch::join_test {
namespace {

using comm::Group;
using comm::Mesh;

using namespace shardwise::testing;

LaunchContext context_of(int rank, int nodes, const std::string& job) {
  LaunchContext context;
  context.launcher = LaunchContext::Launcher::launcher;
  context.rank = rank;
  context.world_size = 4;
  context.nodes = nodes;
  context.node = context.node_of(rank);
  context.job = job;
  return context;
}

Mesh mesh_of(const LaunchContext& context) {
  return Mesh({{"dp", 2}, {"tp", 2}}, context.rank, context.world_size,
              [context](const std::string& axis, const std::vector<int>& ranks) {
                return connect_group(context, axis, ranks, std::chrono::seconds(20));
              });
}

float sum(const Group& group, int rank) {
  return group.all_reduce(at::full({1}, float(1 << rank))).item<float>();
}

TEST(Join, RanksOfOneNodeConnectEveryAxis) {
  on_threads(4, [](int rank, const std::string& job) {
    const LaunchContext context = context_of(rank, /*nodes=*/1, job);
    const Mesh mesh = mesh_of(context);
    EXPECT_EQ(sum(mesh.group("tp"), rank), rank < 2 ? 3 : 12);
    EXPECT_EQ(sum(mesh.group("dp"), rank), rank % 2 == 0 ? 5 : 10);
    EXPECT_EQ(sum(init_process_group(context), rank), 15);
  });
}

TEST(Join, RanksShowEachOtherTheSecretOfTheJob) {
  const base::Secret ours = base::Secret::random(), other = base::Secret::random();
  on_threads(2, [&](int rank, const std::string& job) {
    LaunchContext context = context_of(rank, /*nodes=*/1, job);
    context.world_size = 2;
    if (rank == 1) {
      context.secret = other;
      const std::string error = error_of([&] { init_process_group(context); });
      EXPECT_TRUE(says(error, "the process at the socket of rank 0 does not know the secret")) << error;
    }
    context.secret = ours;
    EXPECT_EQ(sum(init_process_group(context), rank), 3);
  });
}

TEST(Join, GroupsAcrossSimulatedNodesNeedMpirun) {
  on_threads(4, [](int rank, const std::string& job) {
    const LaunchContext context = context_of(rank, /*nodes=*/2, job);
    try {
      mesh_of(context);
      ADD_FAILURE() << "connected";
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(
          base::without_code(base::one_line(error)),
          "launch: multi-node groups need ranks started by Open MPI's mpirun; got 2 ranks of group dp on 2 "
          "nodes (SHARDWISE_NODES); unset it, or run mpirun with -n 4");
    }
    EXPECT_THROW(init_process_group(context), c10::ValueError);
  });
}

TEST(Join, AGroupOfOneRankIsMadeAtOnce) {
  EXPECT_EQ(init_process_group(LaunchContext()).size(), 1);
  EXPECT_EQ(connect_group(context_of(3, /*nodes=*/4, "alone"), "tp", {3}).size(), 1);
}

TEST(Join, TheTimeoutLimitsTheRendezvous) {
  const LaunchContext context = context_of(0, /*nodes=*/1, new_job());
  try {
    init_process_group(context, std::chrono::milliseconds(50));
    ADD_FAILURE() << "connected";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().limit_s, 0.05);
  }
}

/// Parses the output of a worker in the scenario "share": its number of threads and its processors.
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

TEST(Join, TheRanksOfANodeDivideItsCores) {
  const std::string job = new_job();
  Worker first("share", job, 0, 2, 20'000), second("share", job, 1, 2, 20'000);
  const auto [threads, low] = share_of(first);
  const auto [same_threads, high] = share_of(second);
  const AvailableCpus& all = available_cpus();
  EXPECT_EQ(threads, share_out({all, all}, 0).threads);
  EXPECT_EQ(same_threads, threads);
  const bool can_share = std::min(all.cores, all.quota) >= 2;
  std::set<int> both = low;
  both.insert(high.begin(), high.end());
  EXPECT_EQ(int(both.size()), CPU_COUNT(&all.processors));
  EXPECT_EQ(low.size() + high.size(), both.size() * (can_share ? 1 : 2));
}

}  // namespace
}  // namespace shardwise::launch::join_test
