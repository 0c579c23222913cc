// How a started process becomes a rank: it meets the others and takes its share of the cores.
#pragma once
#include <string>
#include <vector>

#include "shardwise/comm/environment.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/timeout.h"

namespace shardwise::comm {

/// Collective over `ranks` (of the job, ascending, this one among them): their group, which `name` tells from
/// the job's others. What Mesh makes its axes' groups of. One rank: a group of one, at once.
/// Errors: c10::ValueError when the ranks are on several hosts, pretended ones too: only shared memory joins
/// ranks so far (docs/adr/0009). base::CommError when one does not come in time.
Group connect(const Place& place, const std::string& name, const std::vector<int>& ranks,
              std::chrono::milliseconds timeout = kTimeout);

/// The group of all ranks of the job. Errors: those of connect.
Group connect_all(const Place& place, std::chrono::milliseconds timeout = kTimeout);

/// What connect_all would refuse, before any rank starts: `ranks` of them, as `place` is told.
/// Errors: c10::ValueError when `place` is of several hosts.
void check_one_host(const Place& place, int64_t ranks);

/// Collective over the ranks of this host, before the process computes anything: binds it to its share of the
/// cores (affinity.h) and returns the number of threads to compute with.
/// Errors: those of share_out and bind_to.
int take_core_share(const Group& group);

}  // namespace shardwise::comm
