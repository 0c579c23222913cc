// Where a rank's memory goes in training, tensor by tensor: what each layer saves for backward, and the
// states.
//
// Logical bytes: what a tensor holds, not how an allocator rounds. Tests compare with what autograd really
// keeps, at 0 %. The step's peak, with what lives only for a moment, is plan/peak.h.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/workload.h"

namespace shardwise::plan {

struct Entry {
  std::string name;
  int64_t bytes;
  Pool pool = Pool::own;
};
using Entries = std::vector<Entry>;
int64_t total(const Entries& entries);
int64_t total(const Entries& entries, Pool pool);

/// What a decoder block's forward makes that a backward may read, in the order in which it is made: the
/// block's input, not its output (the next one's input). bf16 Llama at t = 1:
/// s·b·(8h + 4ad + 4kd + 6f + 4a + 8). Dropout needs nothing, its masks are drawn again.
Entries made_by_block(const Workload& workload, int rank, int64_t layer);

/// What its backward does read, for the gradients that are wanted (wanted.h).
Entries read_by_block(const Workload& workload, int rank, int64_t layer);

/// What of it is kept from forward to backward, as `workload.recompute` says: all; all but the down
/// projection's input; of a block that has a backward the block's input alone.
Entries saved_by_block(const Workload& workload, int rank, int64_t layer);

/// The same for the final norm, the head and the loss, the logits included. The embedding keeps nothing: ids
/// and labels are the caller's (but where padding's are taken out), its output is the first block's input.
Entries made_by_head(const Workload& workload, int rank);
Entries saved_by_head(const Workload& workload, int rank);

/// Parameters that a rank holds, in numbers, frozen ones too.
int64_t parameters_held(const Workload& workload, int rank);

/// Weights, and for those that are trained main gradients, master weights (where weights are narrower than
/// fp32) and AdamW's two moments: 16 bytes per parameter in fp32, 18 in bf16; a frozen one 4 or 2.
Entries model_states(const Workload& workload, int rank);

}  // namespace shardwise::plan
