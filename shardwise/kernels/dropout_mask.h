// The draws behind every mask. For kernels' own sources.
#pragma once
#include "shardwise/kernels/dropout_isa.h"
#include "shardwise/kernels/random.h"

namespace shardwise::kernels {

/// The draws that keep an element with probability 1 − p, p in [0, 1].
DropoutMask mask_of(double p, RandomKey key);

}  // namespace shardwise::kernels
