// Lines of a packed bf16 weight (panel_shape.h) from its rows, for processors with AVX-512.
#pragma once
#include <cstdint>

namespace shardwise::kernels::avx512_bf16 {

/// Writes the lines of the columns [begin, end) of a panel's outputs, both even: `rows` has the address of
/// column 0 of each of the `count` outputs, of which a panel has at most 64; the others are zeros. The
/// addresses have any alignment. Prefetches the columns that follow.
void pack_lines(uint8_t* lines, const uint8_t* const* rows, int64_t count, int64_t begin, int64_t end);

}  // namespace shardwise::kernels::avx512_bf16
