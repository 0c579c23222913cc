// Operands of probes. Ones and zeros would need less power than a model's numbers, and the clock would be
// higher.
#pragma once
#include <cstdint>

namespace shardwise::bench {

/// Returns two bf16 with random signs and mantissas, of sizes from 0.5 to 2.
inline uint32_t random_pair(uint32_t index) {
  uint32_t bits = (index + 1) * 0x9e3779b1;  // the golden ratio, by which multiples are spread
  bits ^= bits >> 15;
  bits *= 0x85ebca77;
  return (bits & 0x80ff80ff) | 0x3f003f00;
}

}  // namespace shardwise::bench
