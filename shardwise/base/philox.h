// Philox4x32-10: random bits as a stateless function of (counter, key).
//
// This is the scalar reference. The kernels have vectorized versions, which are tested against it.
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.4; Random123.
#pragma once
#include <array>
#include <cstdint>

namespace shardwise::base {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

/// Returns four independent random words for a counter and a key.
constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t even = uint64_t{0xD2511F53} * counter[0];
    const uint64_t odd = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(odd),
               static_cast<uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(even)};
    // Weyl sequences: the golden ratio and sqrt(3) - 1.
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

/// Splits a 64-bit seed into the key's two words, low word first.
constexpr PhiloxKey philox_key(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

}  // namespace shardwise::base
