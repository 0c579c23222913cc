// The most memory that a rank needs at once in a training step: model states, what is saved for backward, and
// what lives only for an instant.
//
// A model that is trained as a whole is fullest in backward, at the loss or in the last block, before
// anything much has been freed; one that is mostly frozen in the last block's forward, or in the backward of
// the lowest blocks that differ. Buffers that a vendor's product makes for itself, rotary tables and the like
// are left out: tests hold the result to 1 % of what allocators count.
#pragma once
#include "shardwise/plan/instants.h"

namespace shardwise::plan {

/// The instants of one step that may be its fullest, in the order in which they come.
Instants fullest_instants(const Workload& workload, int rank);

struct Peak {
  Entries states;
  Instant own, shared;  // when ordinary and when shared memory are fullest; not always the same

  int64_t own_bytes() const { return total(states) + total(own.entries, Pool::own); }
  int64_t shared_bytes() const { return total(shared.entries, Pool::shared); }
  /// What counters of the two add up to.
  int64_t bytes() const { return own_bytes() + shared_bytes(); }
};
/// Errors: c10::ValueError for a batch in halves.
Peak training_peak(const Workload& workload, int rank);

}  // namespace shardwise::plan
