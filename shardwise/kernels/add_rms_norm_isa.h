// The inner loop of a sum over the ranks, added to the stream and normed: rows h wide.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct AddRmsNormRows {
  T *stream, *norm;
  const T* const* terms;  // `count` of them, whose rows lie as those of x
  int count;
  const T *x, *bias, *weight;  // the bias may be null
  double eps;
  int64_t h;
};

template <class T>
struct AddRmsNormLoops {
  void (*forward)(const AddRmsNormRows<T>& rows, int64_t begin, int64_t end);
};
SHARDWISE_PER_ISA(AddRmsNormLoops, add_rms_norm_loops)

}  // namespace shardwise::kernels
