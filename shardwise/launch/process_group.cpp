#include "shardwise/launch/process_group.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <map>
#include <numeric>

#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/mpi/mpi.h"
#include "shardwise/comm/rendezvous.h"
#include "shardwise/comm/shm/shm.h"
#include "shardwise/launch/affinity.h"

namespace shardwise::launch {
namespace {

void check_mpi(const LaunchContext& context, const std::string& name, size_t ranks) {
  TORCH_CHECK_VALUE(context.launcher == LaunchContext::Launcher::mpirun,
                    "launch: multi-node groups need ranks started by Open MPI's mpirun; got ", ranks,
                    " ranks of group ", name, " on ", context.nodes,
                    " nodes (SHARDWISE_NODES); unset it, or run mpirun with -n ",
                    std::max(size_t(context.world_size), ranks), " [SW0115]");
  TORCH_CHECK_VALUE(comm::mpi::is_built_in(),
                    "launch: multi-node groups need Open MPI; this build was configured without it; got ",
                    ranks, " ranks of group ", name, "; install libopenmpi-dev and build again [SW0116]");
}

// Simulated nodes share one node_id, so their index is mixed in.
uint64_t node_of_this_rank(const LaunchContext& context) {
  return comm::node_id() ^ (uint64_t(context.node) << 48);
}

comm::Group connect_across_nodes(const LaunchContext& context, const std::string& name,
                                 const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  check_mpi(context, name, ranks.size());
  comm::mpi::ConnectOptions options(context.job, name, ranks, context.rank, context.world_size);
  options.node = node_of_this_rank(context);
  options.timeout = timeout;
  return comm::mpi::connect(options);
}

/// What each rank sends to the others. Trivially copyable.
struct RankCpus {
  uint64_t machine;
  AvailableCpus available;
};

/// The CPUs of the ranks of each machine, and this rank's place among those of its own.
struct CpusByMachine {
  std::map<uint64_t, std::vector<AvailableCpus>> machines;
  uint64_t machine = 0;  // of this rank
  int index = 0;         // of this rank, among the ranks of its machine

  CoreShare own_share() const { return share_out(machines.at(machine), index); }
};

CpusByMachine gather_cpus(const comm::Group& group) {
  CpusByMachine cpus;
  cpus.machine = comm::machine_id();
  const std::vector<RankCpus> ranks = comm::gather_values(RankCpus{cpus.machine, available_cpus()}, group);
  for (int rank = 0; rank < group.size(); ++rank) {
    std::vector<AvailableCpus>& machine = cpus.machines[ranks[size_t(rank)].machine];
    if (rank == group.rank()) cpus.index = static_cast<int>(machine.size());
    machine.push_back(ranks[size_t(rank)].available);
  }
  return cpus;
}

}  // namespace

comm::Group connect_group(const LaunchContext& context, const std::string& name,
                          const std::vector<int>& ranks, std::chrono::milliseconds timeout,
                          const comm::Group* job) {
  const auto found = std::find(ranks.begin(), ranks.end(), context.rank);
  TORCH_INTERNAL_ASSERT(found != ranks.end() && std::is_sorted(ranks.begin(), ranks.end()));
  if (ranks.size() == 1) return comm::Group();
  if (context.may_span_nodes(ranks)) return connect_across_nodes(context, name, ranks, timeout);
  comm::shm::ConnectOptions options(fmt::format("{}/{}/{}", context.job, name, ranks.front()),
                                    int(found - ranks.begin()), int(ranks.size()));
  options.secret = context.secret;
  options.timeout = timeout;
  if (job != nullptr && job->has_symmetric_heap()) options.part = {*job, ranks};
  return comm::shm::connect(options);
}

comm::Group init_process_group(const LaunchContext& context, std::chrono::milliseconds timeout) {
  std::vector<int> ranks(size_t(context.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return connect_group(context, "world", ranks, timeout);
}

void check_nodes(const LaunchContext& context, int64_t ranks) {
  if (ranks > 1 && (context.nodes > 1 || context.is_multi_node)) check_mpi(context, "world", size_t(ranks));
}

void shutdown() {
  comm::mpi::shutdown();
}

int bind_to_core_share(const comm::Group& group) {
  const CpusByMachine cpus = gather_cpus(group);
  int threads = INT_MAX;
  for (const auto& [machine, available] : cpus.machines)
    threads = std::min(threads, share_out(available, /*rank=*/0).threads);
  bind_to(cpus.own_share());
  return threads;
}

bool is_oversubscribed(const comm::Group& group, int threads) {
  const AvailableCpus& own = available_cpus();
  const int needed = gather_cpus(group).own_share().count * threads;
  const std::vector<int> all = comm::gather_values(int{needed > std::min(own.cores, own.quota)}, group);
  return std::ranges::count(all, 1) > 0;
}

}  // namespace shardwise::launch
