#include "shardwise/comm/mpi/mpi.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <climits>

#include "shardwise/base/log.h"
#include "shardwise/comm/mpi/hierarchical.h"

namespace shardwise::comm::mpi {
namespace {

void log_uneven_nodes(const ConnectOptions& options, const Nodes& nodes) {
  std::vector<size_t> sizes;
  for (const std::vector<int>& node : nodes.ranks) sizes.push_back(node.size());
  base::log_info(
      fmt::format("group {}: {} nodes with unequal numbers of ranks ({}); uses MPI between all ranks",
                  options.name, sizes.size(), fmt::join(sizes, ", ")));
}

}  // namespace

bool is_built_in() {
  return true;
}

Group connect(const ConnectOptions& options) {
  TORCH_CHECK_VALUE(options.message_bytes > 0 && options.message_bytes <= INT_MAX,
                    "connect: message_bytes must be from 1 to 2147483647; got ", options.message_bytes,
                    " [SW0120]");
  Process& process = Process::get({options.rank, options.world_size, base::capped(options.timeout)});
  const auto creation_lock = process.lock_group_creation(options.name);
  Membership membership = exchange_peer_info(process, options);
  const Nodes nodes = Nodes::of(membership);
  const bool hierarchical = options.topology == Topology::hierarchical;
  if (hierarchical && nodes.count() == 1) return connect_node(options, nodes);
  make_communicators(membership, options);
  if (hierarchical && nodes.is_even() && nodes.local_size() > 1) {
    return Group(std::make_shared<Hierarchical>(options, std::move(membership), nodes));
  }
  if (hierarchical && !nodes.is_even() && membership.rank == 0) log_uneven_nodes(options, nodes);
  return Group(std::make_shared<Transport>(options, std::move(membership)));
}

void shutdown() {
  if (Process* const process = Process::started()) process->shutdown();
}

}  // namespace shardwise::comm::mpi
