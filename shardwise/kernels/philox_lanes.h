// Philox4x32-10 (philox.h) vectorized over counters. Only for `*_isa.cpp`, see loops.h.
//
// A lane holds a 32-bit word in 64 bits, because the hardware has a 32×32→64-bit product. Upper halves are
// not cleared if the next product ignores them.
#pragma once
#include <cstdint>

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

/// Multiplies the lanes' lower halves.
inline __attribute__((always_inline)) PhiloxWords product(const PhiloxWords& a, uint64_t b) {
  const PhiloxWords factor = PhiloxWords{} + b;
#if defined(__AVX512F__)
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
  PhiloxWords c0, c2 = {}, c3 = {};
  for (int lane = 0; lane < kPhiloxLanes; ++lane) c0[lane] = index + lane;
  PhiloxWords c1 = c0 >> 32;
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const PhiloxWords product0 = product(c0, 0xD2511F53), product1 = product(c2, 0xCD9E8D57);
    c0 = (product1 >> 32) ^ c1 ^ key0;
    c1 = product1;
    c2 = (product0 >> 32) ^ c3 ^ key1;
    c3 = product0;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace shardwise::kernels::SHARDWISE_ISA
