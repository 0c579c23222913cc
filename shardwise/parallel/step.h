// What one forward and its backward share over the ranks: made once per micro-batch, passed to every layer.
#pragma once
#include "shardwise/base/split.h"
#include "shardwise/comm/group.h"
#include "shardwise/kernels/random.h"

namespace shardwise::parallel {

/// Without shared memory, backward needs the gathered input of a column-parallel product again: keep it
/// (memory) or gather the kept shard once more (communication). On shared memory the peers' shards are read
/// again in place.
enum class SaveForBackward { gathered, shard };

/// Whether values that should be equal on all ranks are compared at every crossing (costs an all_reduce
/// each).
enum class Verify { off, on };

/// Whether a crossing goes on beside products, or before or after them: one along the sequence beside its
/// own, an all_reduce of an input's gradient beside the weight's. The numbers are the same bits: products are
/// cut at the ranks' rows either way.
enum class Overlap { off, on };

struct Step {
  comm::Group group;
  /// A shard's shape cannot tell the whole: is 3 on 2 ranks half of 5 or of 6?
  base::Split sequence;
  /// Folded from seed, step and micro-batch; each layer folds in its own place.
  kernels::RandomKey key;
  SaveForBackward save_for_backward = SaveForBackward::shard;
  Verify verify = Verify::off;
  Overlap overlap = Overlap::on;

  Step(comm::Group tp, int64_t sequence_length, kernels::RandomKey random = kernels::RandomKey::of(0))
      : group(std::move(tp)),
        sequence(base::Split::even("sequence", sequence_length, group.size())),
        key(random) {}

  base::Range own_sequence() const { return sequence.range(group.rank()); }
};

}  // namespace shardwise::parallel
