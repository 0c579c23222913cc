// Philox4x32-10: random bits as a function of (counter, key), with no state.
//
// The scalar reference: kernels have vector forms of the same function and are tested against this one.
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.4; Random123.
#pragma once
#include <array>
#include <cstdint>

namespace shardwise::base {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

/// Four independent words for each counter and key.
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

/// The two words of a 64-bit number, low first.
constexpr PhiloxKey philox_key(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

}  // namespace shardwise::base
