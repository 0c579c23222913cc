// The inner loops of rotary positions: heads anywhere in memory, their elements contiguous.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// Elements from one row, batch or head to the next.
struct HeadStrides {
  int64_t row, batch, head;
};

struct HeadExtent {
  int64_t rows, batch, heads, head_dim;
};

template <class T>
struct RotaryLoops {
  /// Rotates each head by its row's angles, `cos` and `sin` [rows, d/2]; direction −1 rotates back.
  void (*rotate)(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent,
                 const Accumulator<T>* cos, const Accumulator<T>* sin, int direction);
  void (*copy)(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent);
};
SHARDWISE_PER_ISA(RotaryLoops, rotary_loops)

}  // namespace shardwise::kernels
