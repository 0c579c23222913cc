// Dequantizes runs of a quantized panel to lines of a bf16 panel (panel_shape.h), for processors with
// AVX512-BF16.
#pragma once
#include "shardwise/kernels/panel_shape.h"

namespace shardwise::kernels::avx512_bf16 {

/// Writes the values of `run_count` runs from `first_run` on, rounded to bf16: to[p · 64 + o] contains the
/// columns 2p and 2p + 1 of output o.
void dequantize_pairs(uint32_t* to, const uint8_t* panel, int64_t first_run, int64_t run_count,
                      const PanelShape& shape);

}  // namespace shardwise::kernels::avx512_bf16
