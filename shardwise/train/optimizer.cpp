#include "shardwise/train/optimizer.h"

#include <ATen/ops/zeros_like.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/adamw.h"

namespace shardwise::train {

using at::Tensor;

namespace {

bool is_narrow(const Tensor& value) {
  return value.element_size() < 4;
}

ParameterState initial_state(const parallel::ParameterPtr& parameter) {
  const Tensor value = parameter->value.detach();
  const Tensor weights = is_narrow(value) ? value.to(at::kFloat) : value;
  return {parameter, is_narrow(value) ? weights : Tensor(), at::zeros_like(weights), at::zeros_like(weights)};
}

}  // namespace

AdamW::AdamW(const nn::UsedParameters& parameters, const AdamWOptions& options) : options_(options) {
  for (const nn::UsedParameter& used : parameters) {
    if (!used.parameter->is_frozen()) state_.push_back(initial_state(used.parameter));
  }
}

void AdamW::step_(int64_t step, double learning_rate, double gradient_scale) {
  update_(step, learning_rate, gradient_scale, /*zeroes_gradient=*/false);
}

void AdamW::step_and_zero_grad_(int64_t step, double learning_rate, double gradient_scale) {
  update_(step, learning_rate, gradient_scale, /*zeroes_gradient=*/true);
}

void AdamW::update_(int64_t step, double learning_rate, double gradient_scale, bool zeroes_gradient) {
  for (const ParameterState& state : state_) parallel::check_backwards(*state.parameter);
  kernels::AdamWStep how{.number = step,
                         .learning_rate = learning_rate,
                         .beta1 = options_.beta1,
                         .beta2 = options_.beta2,
                         .eps = options_.eps,
                         .weight_decay = 0,
                         .gradient_scale = gradient_scale,
                         .zeroes_gradient = zeroes_gradient};
  for (const ParameterState& state : state_) {
    const parallel::Parameter& parameter = *state.parameter;
    base::enter_part(parameter.name);
    const bool decays = parameter.global_shape.size() >= 2;
    how.weight_decay = decays ? options_.weight_decay : 0;
    const Tensor value = parameter.value.detach();
    const bool has_master = state.master.defined();
    kernels::adamw_({.weights = has_master ? state.master : value,
                     .gradient = parameter.main_grad,
                     .exp_avg = state.exp_avg,
                     .exp_avg_sq = state.exp_avg_sq,
                     .rounded = has_master ? value : Tensor()},
                    how);
  }
}

}  // namespace shardwise::train
