// Context parallelism: each rank has the queries of its positions and gathers all keys and values.
//
// Positions are dealt out so that every rank has as many visible keys (Workload::positions). Backward gathers
// the keys and values again, and sums their gradients where they were made: an all_gather with a
// reduce_scatter as its conjugate.
#pragma once
#include "shardwise/plan/communication.h"

namespace shardwise::plan {

/// Returns the bytes of the keys and values of all positions, which a rank holds while it computes attention.
int64_t gathered_key_value_bytes(const Workload& workload, int rank);

/// Returns the collectives of a block among the ranks of context parallelism; none at cp 1.
Passes context_communication(const Workload& workload, int rank);

}  // namespace shardwise::plan
