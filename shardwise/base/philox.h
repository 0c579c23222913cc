// Philox4x32-10: random bits as a stateless function of a counter and a key.
//
// The rounds are written once, for words of any type: philox is the scalar form, kernels/philox_lanes.h
// computes several counters at a time. No library header and no function that is emitted out of line, so that
// sources compiled per instruction set may include this. Source: Salmon et al. 2011, "Parallel random
// numbers: as easy as 1, 2, 3", §3.4 and §4.3; Random123.
#pragma once
#include <cstdint>

namespace shardwise::base {

/// A counter, or its four independent random words.
struct PhiloxBlock {
  uint32_t word[4];
  bool operator==(const PhiloxBlock&) const = default;
};

/// The purpose of a block, stored in the counter's upper half so that different uses never share a block.
enum class PhiloxUse : uint32_t { elements = 0, fold = 1, windows = 0x77696e64 };  // "wind"

/// Runs the ten rounds on the counters in c0 to c3. A Word holds one 32-bit word, or one per lane, in 64 bits
/// whose upper halves are ignored; `product(x, m)` returns the lower half of x times m in 64 bits. Four
/// variables instead of an array, which GCC would keep in memory.
template <class Word, class Product>
[[gnu::always_inline]] constexpr void philox_rounds(Word& c0, Word& c1, Word& c2, Word& c3, uint64_t key,
                                                    Product product) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Word even = product(c0, 0xD2511F53), odd = product(c2, 0xCD9E8D57);
    c0 = (odd >> 32) ^ c1 ^ key0;
    c1 = odd;
    c2 = (even >> 32) ^ c3 ^ key1;
    c3 = even;
    key0 += 0x9E3779B9;  // Weyl sequences: the golden ratio and sqrt(3) - 1
    key1 += 0xBB67AE85;
  }
}

/// Returns the random words of a counter.
[[gnu::always_inline]] constexpr PhiloxBlock philox(const PhiloxBlock& counter, uint64_t key) {
  uint64_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  philox_rounds(c0, c1, c2, c3, key, [](uint64_t x, uint64_t m) { return (x & 0xffffffff) * m; });
  return {{static_cast<uint32_t>(c0), static_cast<uint32_t>(c1), static_cast<uint32_t>(c2),
           static_cast<uint32_t>(c3)}};
}

/// Returns the random words of block `index` of a use.
[[gnu::always_inline]] constexpr PhiloxBlock philox(uint64_t index, PhiloxUse use, uint64_t key) {
  return philox(
      {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(use), 0}},
      key);
}

}  // namespace shardwise::base
