#include "shardwise/comm/mpi/mpi.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <climits>

#include "shardwise/base/log.h"
#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/mpi/hierarchical.h"

namespace shardwise::comm::mpi {
namespace {

void say_uneven(const Options& options, const Hosts& hosts) {
  std::vector<size_t> sizes;
  for (const std::vector<int>& host : hosts.ranks) sizes.push_back(host.size());
  base::log_info(
      fmt::format("group {}: {} ranks on its {} hosts, not as many on each: MPI between all of them",
                  options.name, fmt::join(sizes, ", "), sizes.size()));
}

}  // namespace

bool is_built_in() {
  return true;
}

Group connect(const Options& options) {
  TORCH_CHECK_VALUE(options.message_bytes > 0 && options.message_bytes <= INT_MAX,
                    "connect: message_bytes must be from 1 to 2147483647; got ", options.message_bytes);
  Process& process = Process::of({options.rank, options.world_size, options.timeout});
  const auto turn = process.begin_group(options.name);
  Meeting meeting = greet(process, options);
  const Hosts hosts = Hosts::of(meeting);
  const bool by_host = options.layout == Layout::by_host;
  if (by_host && hosts.count() == 1) return join_host(options, hosts);
  make_communicators(meeting, options);
  if (by_host && hosts.is_even() && hosts.local_count() > 1) {
    return Group(
        c10::make_intrusive<Backend>(std::make_shared<Hierarchical>(options, std::move(meeting), hosts)));
  }
  if (by_host && !hosts.is_even() && meeting.rank == 0) say_uneven(options, hosts);
  return Group(c10::make_intrusive<Backend>(std::make_shared<Transport>(options, std::move(meeting))));
}

void finish() {
  if (Process* const process = Process::started()) process->finish();
}

}  // namespace shardwise::comm::mpi
