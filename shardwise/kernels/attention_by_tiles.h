// Attention of bf16 by dot products of bf16, with AVX-512 BF16's registers or AMX's tiles: scores and sums in
// fp32; probabilities and their gradients are rounded to bf16 before they are multiplied.
#pragma once
#include "shardwise/kernels/attention_isa.h"

namespace shardwise::kernels {

namespace avx512_bf16 {
AttentionForwardLoops<base::Bf16> attention_forward_loops();
AttentionBackwardLoops<base::Bf16> attention_backward_loops();
}  // namespace avx512_bf16

namespace amx {
AttentionForwardLoops<base::Bf16> attention_forward_loops();
AttentionBackwardLoops<base::Bf16> attention_backward_loops();
}  // namespace amx

}  // namespace shardwise::kernels
