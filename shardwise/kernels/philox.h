// The Philox4x32-10 block function. Source: Salmon et al. 2011, §4.3.
//
// This is the scalar form, used to derive keys; philox_lanes.h is vectorized over counters.
#pragma once
#include <array>
#include <cstdint>

namespace shardwise::kernels {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox(PhiloxBlock counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

/// The purpose of a block, stored in the counter's upper half so that different uses never share a block.
enum class PhiloxUse : uint32_t { elements = 0, fold = 1 };

constexpr PhiloxBlock philox(uint64_t index, PhiloxUse use, uint64_t key) {
  return philox(PhiloxBlock{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                            static_cast<uint32_t>(use), 0},
                key);
}

}  // namespace shardwise::kernels
