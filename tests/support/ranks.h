// Runs one function on t ranks, as threads of this process joined by the shared-memory backend.
//
// The threads and their group are kept for the next call, so that a case costs about as much as its body; the
// group is made anew after an error. Ranks that must die are processes (tests/comm/workers.h): a fork without
// exec is no way to get them, because this process has threads, and what their locks guard would be broken in
// the child.
#pragma once
#include <functional>

#include "shardwise/comm/group.h"

namespace shardwise::testing {

/// Calls `body(group)` on `ranks` threads and rethrows the first error after poisoning the group for the
/// others. Each call counts from zero and ends with a barrier, which also finds a rank that ran another
/// number of collectives. A fatal test assertion in one rank ends the others. One ATen thread per rank.
void on_ranks(int ranks, const std::function<void(comm::Group)>& body);

}  // namespace shardwise::testing
