// Which elements dropout keeps, for the CPU and for GPUs: those whose 32-bit draw is at least a threshold.
#pragma once
#include <cstdint>

namespace shardwise::kernels {

/// Elements 32g to 32g + 31 use the Philox blocks 8g to 8g + 7: element 32g + 16h + 2l + w uses word 2h + w
/// of block 8g + l. Vectors of any width produce this order without shuffles.
inline constexpr int64_t kDropoutGroup = 32;

/// Returns the threshold that keeps an element with probability 1 − p, for p in [0, 1]; 2^32 − 1 for p
/// near 1.
inline uint32_t dropout_threshold(double p) {
  const double threshold = __builtin_round(p * 0x1p32), most = 0x1p32 - 1;
  return static_cast<uint32_t>(threshold < most ? threshold : most);
}

}  // namespace shardwise::kernels
