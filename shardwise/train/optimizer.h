// AdamW over each rank's shards. The update is elementwise, so it needs no communication. Gradients are
// synchronized and clipped before (parallel/gradient_sync.h).
//
// Source: Loshchilov & Hutter 2019, algorithm 2.
#pragma once
#include <vector>

#include "shardwise/nn/module.h"
#include "shardwise/parallel/owned_rows.h"

namespace shardwise::kernels {
struct AdamWStep;
}

namespace shardwise::train {

/// The hyperparameters of AdamW.
struct AdamWOptions {
  double beta1 = 0.9;   // decay of the first moment
  double beta2 = 0.95;  // decay of the second moment
  double eps = 1e-8;    // added to the root of the second moment
  double weight_decay =
      0.1;  // applied to parameters with two or more dims, so not to norm weights and biases
};

/// AdamW's tensors for rows of one parameter. Each has the shape of these rows of the parameter's local
/// shard.
struct ParameterState {
  parallel::ParameterPtr parameter;  // the parameter that the state belongs to
  base::Range rows;                  // of its shard, which the optimizer updates; may be none
  at::Tensor master;                 // fp32 weights; undefined if the parameter's dtype is fp32 or fp64
  at::Tensor exp_avg;                // the first moment
  at::Tensor exp_avg_sq;             // the second moment
};

/// The AdamW optimizer of one rank.
class AdamW {
 public:
  /// Allocates the state of the `owned` rows of every parameter that is not frozen: zero moments and, for
  /// dtypes narrower than fp32, fp32 master weights copied from the parameters.
  AdamW(const nn::UsedParameters& parameters, const AdamWOptions& options,
        const parallel::OwnedRows& owned = {});

  /// Performs step number `step` (1, 2, ...): updates the owned rows of every parameter that is not frozen
  /// from its main_grad, multiplied by `gradient_scale` (parallel::clip_scale). main_grad keeps its value.
  void step_(int64_t step, double learning_rate, double gradient_scale = 1);
  /// With the scale of parallel::clip_scale, which is on the parameters' device; if it is NaN, nothing
  /// changes.
  void step_(int64_t step, double learning_rate, const at::Tensor& gradient_scale);
  /// As step_, but also zeroes main_grad of these rows, in the same pass over memory: the next step needs no
  /// zero_grad_.
  void step_and_zero_grad_(int64_t step, double learning_rate, double gradient_scale = 1);
  /// As step_and_zero_grad_, with the scale of parallel::clip_scale, as step_ takes it.
  void step_and_zero_grad_(int64_t step, double learning_rate, const at::Tensor& gradient_scale);

  /// The state of every parameter that is not frozen; writing to its tensors changes the optimizer.
  const std::vector<ParameterState>& state() const { return state_; }

 private:
  kernels::AdamWStep step_of(int64_t step, double learning_rate) const;
  at::Tensor scalar_scale(double gradient_scale) const;
  void update_(kernels::AdamWStep how, const at::Tensor& gradient_scale);
  void update_on_device(const kernels::AdamWStep& step, const at::Tensor& gradient_scale);
  double decay_of(const ParameterState& state) const;
  AdamWOptions options_;
  std::vector<ParameterState> state_;
};

}  // namespace shardwise::train
