// What backward computes again rather than finding it kept: the choice between memory and time.
#pragma once

namespace shardwise::base {

/// What a block keeps from forward to backward. Gradients are the same bits in every mode.
enum class Recompute {
  none,       // all that its backward reads
  selective,  // not what an elementwise pass makes again: the MLP's activation
  full,       // its input alone; backward runs its forward again first
};

}  // namespace shardwise::base
