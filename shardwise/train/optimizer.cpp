#include "shardwise/train/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <numeric>

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

/// Returns the number of rows that are updated as one tensor. The fused kernel rounds full vectors and the
/// tail of a tensor differently, so all ranks with a replica of a KV head must pass it as the same tensor.
int64_t rows_at_once(const parallel::Parameter& parameter) {
  if (parameter.rule.is_partition()) return parameter.value.size(0);
  TORCH_INTERNAL_ASSERT(parameter.rule.dim == 0, parameter.name, " has replicas that are not full rows");
  int64_t rows = 0;
  for (const base::Segment& segment : parameter.rule.segments) rows = std::gcd(rows, segment.unit);
  return rows;
}

/// The argument lists of the fused kernel.
struct Lists {
  std::vector<Tensor> weights, gradients, exp_avgs, exp_avg_sqs, steps;

  void append(const ParameterState& state, const Tensor& step) {
    const int64_t rows = rows_at_once(*state.parameter);
    const auto append_rows = [rows](std::vector<Tensor>& list, const Tensor& x) {
      for (Tensor& part : x.split(rows, /*dim=*/0)) list.push_back(std::move(part));
    };
    append_rows(weights, state.master.defined() ? state.master : state.parameter->value.detach());
    append_rows(gradients, state.parameter->main_grad);
    append_rows(exp_avgs, state.exp_avg);
    append_rows(exp_avg_sqs, state.exp_avg_sq);
    steps.resize(weights.size(), step);
  }
};

void update_(const Lists& lists, double learning_rate, double weight_decay, const AdamWOptions& options) {
  if (lists.weights.empty()) return;
  at::_fused_adamw_(lists.weights, lists.gradients, lists.exp_avgs, lists.exp_avg_sqs, /*max_exp_avg_sqs=*/{},
                    lists.steps, learning_rate, options.beta1, options.beta2, weight_decay, options.eps,
                    /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace

AdamW::AdamW(const nn::UsedParameters& parameters, const AdamWOptions& options) : options_(options) {
  for (const nn::UsedParameter& used : parameters) {
    if (!used.parameter->is_frozen()) state_.push_back(initial_state(used.parameter));
  }
}

void AdamW::step_(int64_t step, double learning_rate) {
  const at::NoGradGuard no_grad;
  // The kernel expects the step as fp32, which is exact up to 2^24.
  const Tensor step_tensor = at::full({}, static_cast<double>(step), at::kFloat);
  Lists decayed, undecayed;
  for (const ParameterState& state : state_) {
    if (state.parameter->value.numel() == 0) continue;  // more ranks than units: an empty shard
    const bool decays = state.parameter->global_shape.size() >= 2;
    Lists& lists = decays ? decayed : undecayed;
    lists.append(state, step_tensor);
  }
  update_(decayed, learning_rate, options_.weight_decay, options_);
  update_(undecayed, learning_rate, /*weight_decay=*/0, options_);
  for (const ParameterState& state : state_) {
    if (state.master.defined()) state.parameter->value.detach().copy_(state.master);
  }
}

}  // namespace shardwise::train
