// The inner loop of add_rms_norm, for rows of width h.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct AddRmsNormRows {
  T *residual, *norm;
  const T* const* partials;  // `count` pointers, one per rank; rows have the layout of x
  int count;
  const T *x, *bias, *weight;  // `bias` may be null
  double eps;
  int64_t h;
};

template <class T>
struct AddRmsNormLoops {
  void (*forward)(const AddRmsNormRows<T>& rows, int64_t begin, int64_t end);
};
SHARDWISE_PER_ISA(AddRmsNormLoops, add_rms_norm_loops)

}  // namespace shardwise::kernels
