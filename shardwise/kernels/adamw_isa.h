// The inner loop of AdamW. T is the dtype of the rounded weights; fp32 and fp64 have none.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// The factors of a step, each computed once in fp64.
template <class A>
struct AdamWFactors {
  A gradient_scale;
  A decay;         // of the weights: 1 − learning rate · weight decay
  A rate1, rate2;  // 1 − beta: how far the moments move
  A beta2;
  A step_size;     // learning rate / (1 − beta1^number)
  A inverse_root;  // 1 / sqrt(1 − beta2^number)
  A eps;
};

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
