// The inner loops of cross-entropy: rows v wide. `max`, `lse` and sums are in the accumulator's type.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct CrossEntropyLoops {
  void (*row_max)(Accumulator<T>* max, const T* logits, int64_t rows, int64_t v);
  void (*sum_exp)(Accumulator<T>* sum, const T* logits, const Accumulator<T>* max, int64_t rows, int64_t v);
  /// d[i] = (exp(logit[i] − lse) − [i = target]) · scale for one row; target −1 for none.
  void (*backward_row)(T* d, const T* logits, Accumulator<T> lse, Accumulator<T> scale, int64_t target,
                       int64_t v);
  Accumulator<T> (*load)(const T* logit);
};
SHARDWISE_PER_ISA(CrossEntropyLoops, cross_entropy_loops)

}  // namespace shardwise::kernels
