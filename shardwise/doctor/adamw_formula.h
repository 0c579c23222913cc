// AdamW as published, in fp64, compared with the trainer's optimizer on this rank's shards.
#pragma once
#include <string>
#include <vector>

#include "shardwise/train/trainer.h"

namespace shardwise::doctor {

class AdamWFormula {
 public:
  /// `trainer` has done no step and is in warmup. Both arguments must outlive this object.
  AdamWFormula(const train::Trainer& trainer, const train::TrainOptions& options);

  /// Copies the trainer's main gradients. Call in each step, before its update.
  void copy_gradients();

  /// Call after each step, with its gradient norm. Returns what is wrong with a weight of this rank, or an
  /// empty string. Each weight must match the formula, applied to its previous value and to the copied
  /// gradients, which are clipped here as options.clip_grad says; a bf16 weight must be its rounded fp32
  /// master. The bound allows 16 roundings to fp32. Source: Loshchilov & Hutter 2019 (decoupled weight
  /// decay), algorithm 2.
  std::string error_after_step(double gradient_norm);

 private:
  /// A weight, its moments and its gradient in fp64.
  struct State {
    at::Tensor weight, mean, square, gradient;
  };
  std::string weight_error(const train::ParameterState& optimizer_state, double gradient_scale,
                           State& state) const;
  at::Tensor expected(const parallel::Parameter& parameter, double gradient_scale, State& state) const;
  double learning_rate() const;

  const train::Trainer& trainer_;
  const train::TrainOptions& options_;
  std::vector<State> states_;  // in the order of the optimizer's states
  int64_t step_ = 0;
};

}  // namespace shardwise::doctor
