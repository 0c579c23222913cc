// AdamW as published, in fp64, beside what the trainer's optimizer makes of this rank's slices.
#pragma once
#include <string>
#include <vector>

#include "shardwise/train/trainer.h"

namespace shardwise::doctor {

class AdamWFormula {
 public:
  /// Of a run that has done no step yet and is warming up. Both outlive this.
  AdamWFormula(const train::Trainer& trainer, const train::Options& options);

  /// After the next step: what is wrong with a weight of this rank; empty: nothing. Each must be what the
  /// formula makes of its value before and of the main gradients as the trainer left them, clipped; a bf16
  /// weight the rounded fp32 master. The bound is that of a dozen roundings to fp32.
  /// Source: Loshchilov & Hutter 2019 (decoupled weight decay), algorithm 2.
  std::string wrong_after_step();

 private:
  /// fp64.
  struct Followed {
    at::Tensor weight, mean, square;
  };
  std::string wrong_weight(const checkpoint::ParameterState& state, Followed& followed) const;
  at::Tensor expected(const parallel::Parameter& parameter, Followed& followed) const;
  double learning_rate() const;

  const train::Trainer& trainer_;
  const train::Options& options_;
  std::vector<Followed> followed_;  // as the optimizer's states
  int64_t step_ = 0;
};

}  // namespace shardwise::doctor
