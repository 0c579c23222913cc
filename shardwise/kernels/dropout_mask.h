// The threshold of dropout masks. Internal to kernels/.
#pragma once
#include "shardwise/kernels/dropout_isa.h"
#include "shardwise/kernels/random.h"

namespace shardwise::kernels {

/// Returns the mask that keeps an element with probability 1 − p, for p in [0, 1].
DropoutMask mask_of(double p, RandomKey key);

}  // namespace shardwise::kernels
