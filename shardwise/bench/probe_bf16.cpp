#include "shardwise/bench/probe_bf16.h"

#include <immintrin.h>

#include "shardwise/bench/random_pair.h"

namespace shardwise::bench::avx512_bf16 {

float multiply_add_bf16(int64_t iterations) {
  constexpr int kChains = 12;  // as in probe_isa.cpp
  static_assert(kBf16Operations == int64_t{kChains} * 16 * 2 * 2);
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  alignas(64) uint32_t pairs[16];
  for (uint32_t i = 0; i < 16; ++i) pairs[i] = random_pair(i);
  __m512i a = _mm512_load_si512(pairs), b = a;  // equal, so that the result is positive
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums)
      sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    asm volatile("" : "+x"(a), "+x"(b));  // keeps the loop from being folded
  }
  __m512 total = _mm512_setzero_ps();
  for (const __m512& sum : sums) total = _mm512_add_ps(total, sum);
  return _mm512_reduce_add_ps(total);
}

}  // namespace shardwise::bench::avx512_bf16
