// The settings of one forward and its backward: created once per micro-batch and passed to every layer.
#pragma once
#include "shardwise/base/split.h"
#include "shardwise/comm/group.h"
#include "shardwise/kernels/random.h"

namespace shardwise::parallel {

/// What a column-parallel product saves of a sequence-sharded input for its weight gradient: the gathered
/// input, which costs memory, or this rank's shard, which backward gathers again. On shared memory it always
/// saves the shard, and backward reads the peers' shards in place.
enum class SaveForBackward { gathered, shard };

/// A debug check of a forward and its backward: compares over the ranks the token ids, labels, random key and
/// loss, the inputs of column-parallel layers, and the output gradients of row-parallel layers. Under TP+SP
/// it compares the latter two after they are gathered, because no other rank has a copy of a shard. Cost: one
/// broadcast and one all_reduce for each value.
enum class Verify { off, on };

/// Whether collectives overlap with GEMMs: a sequence-parallel all_gather or reduce_scatter with its own
/// product, the all_reduce of dX with the product for dW. Both settings return the same bits, because
/// sequence-parallel products are split at the ranks' row boundaries either way.
enum class Overlap { off, on };

/// Returns whether collectives of `group` can overlap with computation: a peer's part can arrive meanwhile,
/// in the symmetric heap, which peers write on their own, or on a backend that progresses asynchronously.
/// Over MPI all of a collective happens inside its call.
inline bool can_overlap(const comm::Group& group) {
  return group.has_symmetric_heap() || !group.is_synchronous();
}

/// The settings of a forward: the group, its split of the sequence, and how collectives run.
struct Step {
  comm::Group group;  // the tp group
  /// How the sequence is split over the ranks. Shapes do not determine it: 3 rows on one of 2 ranks may be a
  /// shard of 5 or of 6.
  base::Split sequence;
  /// Derived from seed, step and micro-batch; each dropout site folds its own id into it.
  kernels::RandomKey key;
  SaveForBackward save_for_backward = SaveForBackward::shard;  // of sequence-sharded inputs
  Verify verify = Verify::off;                                 // a debug check
  Overlap overlap = Overlap::on;                               // of collectives with GEMMs

  /// Splits `sequence_length` positions as evenly as possible over the ranks of `tp`.
  Step(comm::Group tp, int64_t sequence_length, kernels::RandomKey random = kernels::RandomKey::of(0))
      : group(std::move(tp)),
        sequence(base::Split::even("sequence", sequence_length, group.size())),
        key(random) {}

  /// Returns this rank's rows of the sequence.
  base::Range local_sequence() const { return sequence.range(group.rank()); }
};

}  // namespace shardwise::parallel
