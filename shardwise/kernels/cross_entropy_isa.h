// The inner loops of cross-entropy: rows v wide. `max`, `lse` and sums are in the accumulator's type.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// What a row's gradient is made of; the defaults are those of −log softmax alone.
template <class A>
struct RowGradient {
  A scale;
  A probability = 1;  // how often the softmax counts
  A label = 1;
  A each_class = 0;
};

template <class T>
struct CrossEntropyLoops {
  void (*row_max)(Accumulator<T>* max, const T* logits, int64_t rows, int64_t v);
  void (*sum_exp)(Accumulator<T>* sum, const T* logits, const Accumulator<T>* max, int64_t rows, int64_t v);
  /// Σ (logit − max)
  void (*sum_shifted)(Accumulator<T>* sum, const T* logits, const Accumulator<T>* max, int64_t rows,
                      int64_t v);
  /// d[i] = (exp(logit[i] − lse) · probability − each_class − [i = target] · label) · scale for one row;
  /// target −1 for none.
  void (*backward_row)(T* d, const T* logits, Accumulator<T> lse, RowGradient<Accumulator<T>> row,
                       int64_t target, int64_t v);
  Accumulator<T> (*load)(const T* logit);
};
SHARDWISE_PER_ISA(CrossEntropyLoops, cross_entropy_loops)

}  // namespace shardwise::kernels
