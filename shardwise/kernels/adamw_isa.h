// The inner loop of AdamW. T is the dtype of the rounded weights; fp32 and fp64 have none.
#pragma once
#include "shardwise/kernels/adamw_factors.h"
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// The elements of one tensor.
template <class T>
struct AdamWElements {
  Accumulator<T>* weights;
  Accumulator<T>* gradient;
  Accumulator<T>*exp_avg, *exp_avg_sq;
  T* rounded;  // ignored if T is the weights' type
};

template <class T>
struct AdamWLoops {
  using Update = void (*)(AdamWElements<T> x, int64_t begin, int64_t end, AdamWFactors<Accumulator<T>> by);
  Update update;
  Update update_and_zero;  // the gradient
};
SHARDWISE_PER_ISA(AdamWLoops, adamw_loops)

}  // namespace shardwise::kernels
