#include "shardwise/comm/join.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <map>
#include <numeric>

#include "shardwise/comm/affinity.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/mpi/mpi.h"
#include "shardwise/comm/node.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::comm {
namespace {

void check_mpi(const LaunchContext& place, const std::string& name, size_t ranks) {
  TORCH_CHECK_VALUE(place.launcher == LaunchContext::Launcher::mpirun,
                    "launch: ranks of several hosts are started by Open MPI's mpirun; got ", ranks,
                    " ranks of group ", name, " on ", place.hosts,
                    " hosts (SHARDWISE_NODES); unset it, or run mpirun with -n ",
                    std::max(size_t(place.world_size), ranks));
  TORCH_CHECK_VALUE(mpi::is_built_in(),
                    "launch: ranks of several hosts are joined by Open MPI, which this build lacks; got ",
                    ranks, " ranks of group ", name, "; install libopenmpi-dev and build again");
}

// Hosts that are played by one machine differ by their number, real ones by themselves.
uint64_t host_of_this_rank(const LaunchContext& place) {
  return own_node() ^ (uint64_t(place.host) << 48);
}

Group connect_across(const LaunchContext& place, const std::string& name, const std::vector<int>& ranks,
                     std::chrono::milliseconds timeout) {
  check_mpi(place, name, ranks.size());
  mpi::Options options(place.job, name, ranks, place.rank, place.world_size);
  options.host = host_of_this_rank(place);
  options.timeout = timeout;
  return mpi::connect(options);
}

/// Plain bytes.
struct Member {
  uint64_t machine;
  Allowance allowance;
};

}  // namespace

Group connect(const LaunchContext& place, const std::string& name, const std::vector<int>& ranks,
              std::chrono::milliseconds timeout) {
  const auto own = std::find(ranks.begin(), ranks.end(), place.rank);
  TORCH_INTERNAL_ASSERT(own != ranks.end() && std::is_sorted(ranks.begin(), ranks.end()));
  if (ranks.size() == 1) return Group();
  if (place.may_span_nodes(ranks)) return connect_across(place, name, ranks, timeout);
  shm::Options options(fmt::format("{}/{}/{}", place.job, name, ranks.front()), int(own - ranks.begin()),
                       int(ranks.size()));
  options.timeout = timeout;
  return shm::connect(options);
}

Group init_process_group(const LaunchContext& place, std::chrono::milliseconds timeout) {
  std::vector<int> ranks(size_t(place.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return connect(place, "world", ranks, timeout);
}

void check_nodes(const LaunchContext& place, int64_t ranks) {
  if (ranks > 1 && (place.hosts > 1 || place.is_multi_node)) check_mpi(place, "world", size_t(ranks));
}

void finish() {
  mpi::finish();
}

int take_core_share(const Group& group) {
  const std::vector<Member> members = gather_values(Member{own_machine(), own_allowance()}, group);
  std::map<uint64_t, std::vector<Allowance>> machines;
  int own = 0;  // among the ranks of this machine
  for (int rank = 0; rank < group.size(); ++rank) {
    std::vector<Allowance>& machine = machines[members[size_t(rank)].machine];
    if (rank == group.rank()) own = static_cast<int>(machine.size());
    machine.push_back(members[size_t(rank)].allowance);
  }
  int threads = INT_MAX;
  for (const auto& [machine, allowances] : machines)
    threads = std::min(threads, share_out(allowances, /*rank=*/0).threads);
  bind_to(share_out(machines[members[size_t(group.rank())].machine], own));
  return threads;
}

}  // namespace shardwise::comm
