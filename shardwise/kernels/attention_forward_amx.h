// Attention's forward of bf16 by AMX's tiles: scores in fp32, and probabilities rounded to bf16 before they
// are multiplied with the values.
#pragma once
#include "shardwise/kernels/attention_isa.h"

namespace shardwise::kernels::amx {

AttentionForwardLoops<base::Bf16> attention_forward_loops();

}  // namespace shardwise::kernels::amx
