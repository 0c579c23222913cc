#include "shardwise/doctor/adamw_formula.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shardwise/doctor/results.h"

namespace shardwise::doctor {

using at::Tensor;
using train::ParameterState;

namespace {

/// Roundings to fp32 that the bound allows, relative to the weight plus the learning rate, which limits the
/// update of an element: more than the kernel makes in sequence.
constexpr double kRoundings = 16;

/// Returns an fp64 copy of the master weight, or of the weight if there is no master.
Tensor weight_of(const ParameterState& state) {
  return (state.master.defined() ? state.master : state.parameter->value.detach()).to(at::kDouble);
}

bool is_master_rounded(const ParameterState& state) {
  const Tensor value = state.parameter->value.detach();
  return !state.master.defined() || value.equal(state.master.to(value.scalar_type()));
}

}  // namespace

AdamWFormula::AdamWFormula(const train::Trainer& trainer, const train::TrainOptions& options)
    : trainer_(trainer), options_(options) {
  for (const ParameterState& state : trainer.optimizer().state()) {
    const Tensor weight = weight_of(state);
    states_.push_back({weight, at::zeros_like(weight), at::zeros_like(weight), at::Tensor()});
  }
}

void AdamWFormula::copy_gradients() {
  const auto& optimizer_states = trainer_.optimizer().state();
  for (size_t i = 0; i < optimizer_states.size(); ++i)
    states_[i].gradient =
        optimizer_states[i].parameter->main_grad.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}

std::string AdamWFormula::error_after_step(double gradient_norm) {
  ++step_;
  const double clip = options_.clip_grad;
  const double gradient_scale = clip > 0 ? std::min(1., clip / (gradient_norm + 1e-6)) : 1;
  std::string first_error;
  const auto& optimizer_states = trainer_.optimizer().state();
  for (size_t i = 0; i < optimizer_states.size(); ++i) {
    const std::string error = weight_error(optimizer_states[i], gradient_scale, states_[i]);
    if (first_error.empty()) first_error = error;
  }
  return first_error;
}

std::string AdamWFormula::weight_error(const ParameterState& optimizer_state, double gradient_scale,
                                       State& state) const {
  const std::string& name = optimizer_state.parameter->name;
  const Tensor before = state.weight, formula = expected(*optimizer_state.parameter, gradient_scale, state);
  const Tensor bound = (before.abs() + learning_rate()) * (kRoundings * unit_roundoff(at::kFloat));
  state.weight = weight_of(optimizer_state);
  const Tensor difference = (state.weight - formula).abs();
  if (!difference.le(bound).all().item<bool>())
    return fmt::format("{} differs from AdamW's formula by {:.2e} after step {}; the bound is at most {:.2e}",
                       name, difference.max().item<double>(), step_, bound.max().item<double>());
  if (!is_master_rounded(optimizer_state))
    return fmt::format("{} is not its rounded fp32 master after step {}", name, step_);
  return {};
}

/// Updates the moments and returns the expected weight. It starts from the trainer's weight, so that each
/// step's rounding is checked by itself.
Tensor AdamWFormula::expected(const parallel::Parameter& parameter, double gradient_scale,
                              State& state) const {
  const auto& [weight, mean, square, unclipped] = state;
  const double beta1 = options_.beta1, beta2 = options_.beta2, eps = options_.eps, rate = learning_rate();
  const Tensor gradient = unclipped * gradient_scale;
  state.mean = mean * beta1 + gradient * (1 - beta1);
  state.square = square * beta2 + gradient.square() * (1 - beta2);
  const auto steps = static_cast<double>(step_);
  const Tensor unbiased_mean = mean / (1 - std::pow(beta1, steps)),
               unbiased_square = square / (1 - std::pow(beta2, steps));
  const double decay = parameter.global_shape.size() >= 2 ? double{options_.weight_decay} : 0;
  return weight - weight * (rate * decay) - unbiased_mean / (unbiased_square.sqrt() + eps) * rate;
}

double AdamWFormula::learning_rate() const {
  return options_.lr * static_cast<double>(step_) / static_cast<double>(options_.warmup_steps());
}

}  // namespace shardwise::doctor
