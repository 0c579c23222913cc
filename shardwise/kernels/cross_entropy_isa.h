// The inner loops of cross-entropy, for rows of width v. `lse`, maxima and sums are in the accumulator's
// type.
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
  /// Returns the maximum of a row, −inf if v is 0.
  Accumulator<T> (*row_max)(const T* logits, int64_t v);
  /// Returns Σ exp(logit − origin) of a row.
  Accumulator<T> (*sum_exp)(const T* logits, Accumulator<T> origin, int64_t v);
  /// Returns Σ (logit − origin) of a row.
  Accumulator<T> (*sum_shifted)(const T* logits, Accumulator<T> origin, int64_t v);
  /// Replaces a row of logits by its gradient (exp(logit[i] − lse) · probability − each_class − [i = target]
  /// · label) · scale; `target` is −1 if the label is not in this shard.
  void (*backward_row)(T* logits, Accumulator<T> lse, RowGradient<Accumulator<T>> row, int64_t target,
                       int64_t v);
  Accumulator<T> (*load)(const T* logit);
};
SHARDWISE_PER_ISA(CrossEntropyLoops, cross_entropy_loops)

}  // namespace shardwise::kernels
