// Attention of bf16 by AMX's tiles: scores and sums in fp32; probabilities and their gradients are rounded to
// bf16 before they are multiplied.
#pragma once
#include "shardwise/kernels/attention_isa.h"

namespace shardwise::kernels::amx {

AttentionForwardLoops<base::Bf16> attention_forward_loops();
AttentionBackwardLoops<base::Bf16> attention_backward_loops();

}  // namespace shardwise::kernels::amx
