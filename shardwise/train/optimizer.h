// AdamW over the ranks' slices: elementwise, so that a slice needs nothing from its peers.
//
// Source: Loshchilov & Hutter 2019, algorithm 2, with torch.optim.AdamW's arithmetic. Synchronizing and
// clipping the gradients comes before (parallel/gradient_sync.h).
#pragma once
#include "shardwise/checkpoint/checkpoint.h"

namespace shardwise::train {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // of parameters with two dims or more: norms and biases keep their size
};

class AdamW {
 public:
  /// Frozen parameters have no state. Moments begin at zero; models narrower than fp32 get fp32 master
  /// weights, copied from the parameters as they are.
  AdamW(const nn::UsedParameters& roles, const AdamWOptions& options);

  /// Step number `step` (1, 2, ...): updates every parameter that is not frozen from its main_grad.
  void step_(int64_t step, double learning_rate);

  /// The tensors that a checkpoint keeps; writing to them changes the optimizer.
  std::vector<checkpoint::ParameterState>& state() { return state_; }
  const std::vector<checkpoint::ParameterState>& state() const { return state_; }

 private:
  AdamWOptions options_;
  std::vector<checkpoint::ParameterState> state_;
};

}  // namespace shardwise::train
