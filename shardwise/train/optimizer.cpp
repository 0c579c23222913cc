#include "shardwise/train/optimizer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/adamw.h"
#include "shardwise/kernels/device.h"

namespace shardwise::train {

using at::Tensor;

namespace {

bool is_narrow(const Tensor& value) {
  return value.element_size() < 4;
}

ParameterState initial_state(const parallel::ParameterPtr& parameter, const base::Range& rows) {
  const Tensor value = parameter->value_rows(rows);
  const Tensor weights = is_narrow(value) ? value.to(at::kFloat) : value;
  return {parameter, rows, is_narrow(value) ? weights : Tensor(), at::zeros_like(weights),
          at::zeros_like(weights)};
}

}  // namespace

AdamW::AdamW(const nn::UsedParameters& parameters, const AdamWOptions& options,
             const parallel::OwnedRows& owned)
    : options_(options) {
  for (const auto& [parameter, use] : parameters)
    if (!parameter->is_frozen()) state_.push_back(initial_state(parameter, owned.of(*parameter)));
}

void AdamW::step_(int64_t step, double learning_rate, double gradient_scale) {
  update_(step_of(step, learning_rate), scalar_scale(gradient_scale));
}

void AdamW::step_(int64_t step, double learning_rate, const Tensor& gradient_scale) {
  update_(step_of(step, learning_rate), gradient_scale);
}

void AdamW::step_and_zero_grad_(int64_t step, double learning_rate, double gradient_scale) {
  step_and_zero_grad_(step, learning_rate, scalar_scale(gradient_scale));
}

void AdamW::step_and_zero_grad_(int64_t step, double learning_rate, const Tensor& gradient_scale) {
  kernels::AdamWStep how = step_of(step, learning_rate);
  how.zeroes_gradient = true;
  update_(how, gradient_scale);
}

kernels::AdamWStep AdamW::step_of(int64_t step, double learning_rate) const {
  return {.number = step,
          .learning_rate = learning_rate,
          .beta1 = options_.beta1,
          .beta2 = options_.beta2,
          .eps = options_.eps,
          .weight_decay = 0,
          .gradient_scale = 1};
}

Tensor AdamW::scalar_scale(double gradient_scale) const {
  if (state_.empty()) return {};
  const Tensor& like = state_[0].exp_avg;
  return at::full({1}, gradient_scale, like.options().dtype(like.is_cpu() ? at::kDouble : at::kFloat));
}

namespace {

/// The tensors that a step updates.
kernels::AdamWTensors tensors_of(const ParameterState& state) {
  const Tensor value = state.parameter->value_rows(state.rows);
  const bool has_master = state.master.defined();
  return {.weights = has_master ? state.master : value,
          .gradient = state.parameter->gradient_rows(state.rows),
          .exp_avg = state.exp_avg,
          .exp_avg_sq = state.exp_avg_sq,
          .rounded = has_master ? value : Tensor()};
}

}  // namespace

void AdamW::update_(kernels::AdamWStep how, const Tensor& gradient_scale) {
  if (state_.empty()) return;
  for (const ParameterState& state : state_) parallel::check_backwards(*state.parameter);
  if (!gradient_scale.is_cpu()) return update_on_device(how, gradient_scale);
  how.gradient_scale = gradient_scale.item<double>();
  if (std::isnan(how.gradient_scale)) return;
  for (const ParameterState& state : state_) {
    if (state.rows.empty()) continue;
    base::enter_part(state.parameter->name);
    how.weight_decay = decay_of(state);
    kernels::adamw_(tensors_of(state), how);
  }
}

double AdamW::decay_of(const ParameterState& state) const {
  return state.parameter->global_shape.size() >= 2 ? options_.weight_decay : 0;
}

void AdamW::update_on_device(const kernels::AdamWStep& step, const Tensor& gradient_scale) {
  base::enter_part("");
  std::vector<kernels::AdamWTensors> tensors;
  std::vector<double> decays;
  for (const ParameterState& state : state_) {
    if (state.rows.empty()) continue;
    tensors.push_back(tensors_of(state));
    decays.push_back(decay_of(state));
  }
  kernels::device_of("adamw", state_[0].exp_avg)->adamw(tensors, decays, gradient_scale, step);
}

}  // namespace shardwise::train
