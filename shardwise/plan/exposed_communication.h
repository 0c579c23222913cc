// The part of tensor parallelism's collectives that products do not hide.
//
// A collective of a layer runs beside products of the same layer, as in docs/adr/0019: an all_gather before a
// product, whose rows are multiplied as they arrive; a reduce_scatter after one, whose rows are sent as they
// are computed; in backward beside the other gradient's product too. The all_reduces of a split batch run
// beside the other half (nn/split_batch.h). Ranks that share memory hide nothing: what computes also copies.
#pragma once
#include "shardwise/plan/machine.h"
#include "shardwise/plan/operations.h"

namespace shardwise::plan {

/// A product of `compute` seconds beside a collective of `collective` seconds.
struct Overlapped {
  double collective = 0;  // alone
  double compute = 0;     // of the whole product, alone
  double in_parts = 0;    // of the product, computed in one part for each rank; no less
  double waiting = 0;  // of in_parts, what the collective cannot run beside: the first part, or the last one
  double share = 0;    // of the arithmetic, what the running collective takes
  /// Returns the seconds that the collective adds to `compute`; at most `collective`, since it need not
  /// overlap.
  double exposed() const;
};

/// Returns the seconds that the collectives of a block add to its `operations`, forward and backward.
double exposed_block_seconds(const Workload& workload, int rank, int64_t layer, const Operations& operations,
                             const Machine& machine);

}  // namespace shardwise::plan
