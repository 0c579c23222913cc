// Draws the random words of dropout masks. Only for `*_isa.cpp`, see loops.h.
#pragma once
#include "shardwise/kernels/dropout_isa.h"
#include "shardwise/kernels/philox_lanes.h"

namespace shardwise::kernels::SHARDWISE_ISA {

/// Number of groups drawn at a time, whose words fit the first-level cache.
constexpr int64_t kDrawnGroups = 8;

/// Draws the words of `groups` groups, in the order of the elements.
inline void draw_words(uint32_t* words, uint64_t key, uint64_t first_group, int64_t groups) {
  constexpr uint64_t kLower = 0xffffffff;
  constexpr int64_t kBlocks = kDropoutGroup / 4;
  for (int64_t block = 0; block < groups * kBlocks; block += kPhiloxLanes) {
    const PhiloxBlocks blocks = philox_blocks(first_group * kBlocks + block, key);
    uint32_t* to = words + block / kBlocks * kDropoutGroup + block % kBlocks * 2;
    const PhiloxWords first = (blocks.word[0] & kLower) | (blocks.word[1] << 32);
    const PhiloxWords second = (blocks.word[2] & kLower) | (blocks.word[3] << 32);
    __builtin_memcpy(to, &first, sizeof first);
    __builtin_memcpy(to + kDropoutGroup / 2, &second, sizeof second);
  }
}

}  // namespace shardwise::kernels::SHARDWISE_ISA
