// The inner loops of SwiGLU, for rows of gate|up of width 2f.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct SwigluLoops {
  void (*forward)(T* y, const T* gate_up, int64_t rows, int64_t f);
  void (*backward)(T* d_gate_up, const T* dy, const T* gate_up, int64_t rows, int64_t f);
};
SHARDWISE_PER_ISA(SwigluLoops, swiglu_loops)

}  // namespace shardwise::kernels
