// The data-parallel ranks of different hosts, of which those of one host share memory.
#pragma once
#include "shardwise/comm/group.h"

namespace shardwise::parallel {

/// The ranks of a data-parallel group by host: they fill the hosts in order, as many on each.
struct HostGroups {
  comm::Group within;  // the ranks of this host, in their order
  comm::Group across;  // of each host, in their order, the rank with this one's index on its host
};

}  // namespace shardwise::parallel
