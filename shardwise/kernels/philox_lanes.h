// Philox4x32-10 (base/philox.h) vectorized over counters. Only for `*_isa.cpp`, see loops.h.
//
// A lane holds a 32-bit word in 64 bits, because the hardware has a 32×32→64-bit product.
#pragma once
#include <cstdint>

#include "shardwise/base/philox.h"

#if defined(__AVX512F__)
#define SHARDWISE_LANES 8
#elif defined(__AVX2__)
#define SHARDWISE_LANES 4
#else
#define SHARDWISE_LANES 2
#endif

namespace shardwise::kernels::SHARDWISE_ISA {

constexpr int kPhiloxLanes = SHARDWISE_LANES;
typedef uint64_t PhiloxWords __attribute__((vector_size(kPhiloxLanes * 8)));
#undef SHARDWISE_LANES

/// Multiplies the lanes' lower halves. GCC does not recognize the one instruction for it in the formula.
inline __attribute__((always_inline)) PhiloxWords product(const PhiloxWords& a, uint64_t b) {
  const PhiloxWords factor = PhiloxWords{} + b;
#if defined(__clang__)
  return (a & 0xffffffff) * (factor & 0xffffffff);
#elif defined(__AVX512F__)
  typedef int Ints __attribute__((vector_size(64)));
  typedef long long Longs __attribute__((vector_size(64)));
  return (PhiloxWords)__builtin_ia32_pmuludq512_mask((Ints)a, (Ints)factor, Longs{}, 0xff);
#elif defined(__AVX2__)
  typedef int Ints __attribute__((vector_size(32)));
  return (PhiloxWords)__builtin_ia32_pmuludq256((Ints)a, (Ints)factor);
#else
  typedef int Ints __attribute__((vector_size(16)));
  return (PhiloxWords)__builtin_ia32_pmuludq128((Ints)a, (Ints)factor);
#endif
}

/// The four words of blocks `index` to `index` + kPhiloxLanes − 1, in the lanes' lower halves.
struct PhiloxBlocks {
  PhiloxWords word[4];
};

inline __attribute__((always_inline)) PhiloxBlocks philox_blocks(uint64_t index, uint64_t key) {
  PhiloxWords c0, c2 = {}, c3 = {};  // of use `elements`, which is 0
  for (int lane = 0; lane < kPhiloxLanes; ++lane) c0[lane] = index + lane;
  PhiloxWords c1 = c0 >> 32;
  base::philox_rounds(c0, c1, c2, c3, key, [](const PhiloxWords& x, uint64_t m) { return product(x, m); });
  return {{c0, c1, c2, c3}};
}

}  // namespace shardwise::kernels::SHARDWISE_ISA
