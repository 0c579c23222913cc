// Reference clipping and AdamW on unsharded tensors.
// Source: Loshchilov & Hutter 2019, algorithm 2; torch.nn.utils.clip_grad_norm_.
#pragma once
#include "tests/support/reference.h"

namespace shardwise::testing {

/// Returns (Σ |g|^order)^(1/order) over all tensors; for order infinity the maximum of |g|.
double reference_norm(const Tensors& gradients, double order);

/// Scales all gradients by max_norm / (norm + 1e-6) if that is below one.
void reference_clip_(Tensors& gradients, double norm, double max_norm);

class ReferenceAdamW {
 public:
  struct Options {
    double beta1, beta2, eps, weight_decay;  // the decay of tensors of two dims or more
  };
  explicit ReferenceAdamW(const Options& options) : options_(options) {}

  /// Applies one step; `step` counts from 1.
  void step_(Tensors& weights, const Tensors& gradients, int64_t step, double learning_rate);

 private:
  Options options_;
  Tensors mean_, square_;
};

}  // namespace shardwise::testing
