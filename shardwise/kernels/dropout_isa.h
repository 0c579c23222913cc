// The inner loop of dropout: draws and applies the mask in one pass.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// Which elements are kept: those whose 32-bit draw is not below `threshold`.
struct DropoutMask {
  uint64_t key;
  uint32_t threshold;
};

/// Elements 32g to 32g + 31 share the Philox blocks 8g to 8g + 7: element 32g + 16h + 2l + w is drawn by word
/// 2h + w of block 8g + l, an order that vectors of any width reach without shuffling.
inline constexpr int64_t kDropoutGroup = 32;

template <class T>
struct DropoutLoops {
  /// y[i] = kept ? x[i] · scale : 0, for elements `first` + i of the stream.
  void (*apply)(T* y, const T* x, int64_t count, uint64_t first, DropoutMask mask, Accumulator<T> scale);
};
SHARDWISE_PER_ISA(DropoutLoops, dropout_loops)

}  // namespace shardwise::kernels
