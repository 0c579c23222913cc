// Attention of one query over bf16 keys and values by bf16 dot products.
#pragma once
#include "shardwise/kernels/attention_single_isa.h"

namespace shardwise::kernels::avx512_bf16 {

AttentionSingleLoops<base::Bf16> attention_single_loops();

}  // namespace shardwise::kernels::avx512_bf16
