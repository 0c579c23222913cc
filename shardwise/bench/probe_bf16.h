// Loops of the dot products of AVX-512 BF16 in registers.
#pragma once
#include <cstdint>

namespace shardwise::bench::avx512_bf16 {

/// The operations of one iteration of `multiply_add_bf16`.
inline constexpr int64_t kBf16Operations = int64_t{12} * 16 * 2 * 2;

/// Runs `iterations` of independent vdpbf16ps. Returns a sum, which makes them necessary. Needs AVX512-BF16.
float multiply_add_bf16(int64_t iterations);

}  // namespace shardwise::bench::avx512_bf16
