// A step of AdamW as the kernels of every device compute it.
#pragma once
#include <cmath>
#include <cstdint>

namespace shardwise::kernels {

/// What the elements of a step share.
struct AdamWStep {
  int64_t number;  // 1, 2, ...
  double learning_rate;
  double beta1, beta2;  // the decays of the moments
  double eps;           // added to the root of the second moment
  double weight_decay;
  double gradient_scale;         // multiplies the gradient, as clipping does
  bool zeroes_gradient = false;  // afterwards, for the next step's backward to add to
};

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

template <class A>
AdamWFactors<A> factors_of(const AdamWStep& step) {
  const auto number = static_cast<double>(step.number);
  const double correction1 = 1 - std::pow(step.beta1, number), correction2 = 1 - std::pow(step.beta2, number);
  return {.gradient_scale = static_cast<A>(step.gradient_scale),
          .decay = static_cast<A>(1 - step.learning_rate * step.weight_decay),
          .rate1 = static_cast<A>(1 - step.beta1),
          .rate2 = static_cast<A>(1 - step.beta2),
          .beta2 = static_cast<A>(step.beta2),
          .step_size = static_cast<A>(step.learning_rate / correction1),
          .inverse_root = static_cast<A>(1 / std::sqrt(correction2)),
          .eps = static_cast<A>(step.eps)};
}

}  // namespace shardwise::kernels
