#include "shardwise/doctor/adamw_formula.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cmath>

#include "shardwise/doctor/bound.h"

namespace shardwise::doctor {

using at::Tensor;
using checkpoint::ParameterState;

namespace {

/// Of the weight and of the learning rate, which no element moves by much more than: as many as the fused
/// kernel makes one behind the other, with room.
constexpr double kRoundings = 16;

/// What the optimizer works on, in fp64: a copy.
Tensor weight_of(const ParameterState& state) {
  return (state.master.defined() ? state.master : state.parameter->value.detach()).to(at::kDouble);
}

bool is_rounded_master(const ParameterState& state) {
  const Tensor value = state.parameter->value.detach();
  return !state.master.defined() || value.equal(state.master.to(value.scalar_type()));
}

}  // namespace

AdamWFormula::AdamWFormula(const train::Trainer& trainer, const train::Options& options)
    : trainer_(trainer), options_(options) {
  for (const ParameterState& state : trainer.optimizer().state()) {
    const Tensor weight = weight_of(state);
    followed_.push_back({weight, at::zeros_like(weight), at::zeros_like(weight)});
  }
}

std::string AdamWFormula::wrong_after_step() {
  ++step_;
  std::string wrong;
  const auto& states = trainer_.optimizer().state();
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string of_this = wrong_weight(states[i], followed_[i]);
    if (wrong.empty()) wrong = of_this;
  }
  return wrong;
}

std::string AdamWFormula::wrong_weight(const ParameterState& state, Followed& followed) const {
  const std::string& name = state.parameter->name;
  const Tensor before = followed.weight, formula = expected(*state.parameter, followed);
  const Tensor bound = (before.abs() + learning_rate()) * (kRoundings * unit_roundoff(at::kFloat));
  followed.weight = weight_of(state);
  const Tensor off = (followed.weight - formula).abs();
  if (!off.le(bound).all().item<bool>())
    return fmt::format("{} is off AdamW's formula by {:.2e} after step {}; the bound is at most {:.2e}", name,
                       off.max().item<double>(), step_, bound.max().item<double>());
  if (!is_rounded_master(state))
    return fmt::format("{} is not its fp32 master, rounded, after step {}", name, step_);
  return {};
}

/// The moments go on; the weight is that of the trainer, so that one step's rounding is judged at a time.
Tensor AdamWFormula::expected(const parallel::Parameter& parameter, Followed& followed) const {
  const auto& [weight, mean, square] = followed;
  const double beta1 = options_.beta1, beta2 = options_.beta2, rate = learning_rate();
  const Tensor gradient = parameter.main_grad.to(at::kDouble);
  followed.mean = mean * beta1 + gradient * (1 - beta1);
  followed.square = square * beta2 + gradient.square() * (1 - beta2);
  const auto steps = static_cast<double>(step_);
  const Tensor unbiased_mean = mean / (1 - std::pow(beta1, steps)),
               unbiased_square = square / (1 - std::pow(beta2, steps));
  const double decay = parameter.global_shape.size() >= 2 ? options_.weight_decay : 0;
  return weight - weight * (rate * decay) - unbiased_mean / (unbiased_square.sqrt() + options_.eps) * rate;
}

double AdamWFormula::learning_rate() const {
  return options_.lr * static_cast<double>(step_) / static_cast<double>(options_.warmup_steps());
}

}  // namespace shardwise::doctor
