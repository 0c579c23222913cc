// The inner loops of cross-entropy, for rows of width v. `max`, `lse` and sums are in the accumulator's type.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// The factors of a row's gradient; the defaults give the gradient of −log softmax.
template <class A>
struct RowGradient {
  A scale;
  A probability = 1;  // factor of the softmax
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
  /// `target` is −1 if the label is not in this shard.
  void (*backward_row)(T* d, const T* logits, Accumulator<T> lse, RowGradient<Accumulator<T>> row,
                       int64_t target, int64_t v);
  Accumulator<T> (*load)(const T* logit);
};
SHARDWISE_PER_ISA(CrossEntropyLoops, cross_entropy_loops)

}  // namespace shardwise::kernels
