// The inner loops of an int8 KV cache. Defined in stored_heads_isa.cpp.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct StoredRowLoops {
  /// Rounds d elements to multiples of the returned scale; NaN if an element is NaN or infinite.
  float (*quantize)(int8_t* to, const T* from, int64_t d);
  void (*dequantize)(T* to, const int8_t* from, float scale, int64_t d);
};
SHARDWISE_PER_ISA(StoredRowLoops, stored_row_loops)

}  // namespace shardwise::kernels
