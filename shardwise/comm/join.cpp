#include "shardwise/comm/join.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "shardwise/comm/affinity.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::comm {
namespace {

[[noreturn]] void refuse_hosts(const std::string& name, size_t ranks, int hosts) {
  TORCH_CHECK_VALUE(false, "launch: the ranks of group ", name,
                    " are on one host, as only shared memory joins ranks; got ", ranks,
                    " ranks, of a job on ", hosts, " hosts (SHARDWISE_HOSTS)");
}

}  // namespace

Group connect(const Place& place, const std::string& name, const std::vector<int>& ranks,
              std::chrono::milliseconds timeout) {
  const auto own = std::find(ranks.begin(), ranks.end(), place.rank);
  TORCH_INTERNAL_ASSERT(own != ranks.end() && std::is_sorted(ranks.begin(), ranks.end()));
  if (ranks.size() == 1) return Group();
  if (place.host_of(ranks.front()) != place.host_of(ranks.back()))
    refuse_hosts(name, ranks.size(), place.hosts);
  shm::Options options(fmt::format("{}/{}/{}", place.job, name, ranks.front()), int(own - ranks.begin()),
                       int(ranks.size()));
  options.timeout = timeout;
  return shm::connect(options);
}

Group connect_all(const Place& place, std::chrono::milliseconds timeout) {
  std::vector<int> ranks(size_t(place.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return connect(place, "world", ranks, timeout);
}

void check_one_host(const Place& place, int64_t ranks) {
  if (place.hosts > 1) refuse_hosts("world", size_t(ranks), place.hosts);
}

int take_core_share(const Group& group) {
  const CoreShare share = share_out(gather_values(own_allowance(), group), group.rank());
  bind_to(share);
  return share.threads;
}

}  // namespace shardwise::comm
