#include "shardwise/train/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

namespace shardwise::train::optimizer_test {
namespace {

using at::Tensor;
using parallel::ParameterPtr;

constexpr AdamWOptions kOptions{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.25};

ParameterPtr make_parameter(std::vector<int64_t> shape, at::ScalarType dtype) {
  auto parameter = parallel::make_parameter("p", std::move(shape), base::ShardRule::replicated(),
                                            parallel::Init::constant(0), comm::Group(), dtype);
  parallel::zero_grad_(*parameter);
  return parameter;
}

double gradient_at(int64_t step, int64_t element) {
  return std::sin(1.0 + 3.0 * step + 0.7 * element);
}
double weight_at(int64_t element) {
  return 0.5 - 0.3 * element;
}

void set_weights_(const ParameterPtr& parameter) {
  const Tensor flat = parameter->value.detach().view({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) flat[i] = weight_at(i);
}

void set_gradient_(const ParameterPtr& parameter, int64_t step) {
  const Tensor flat = parameter->main_grad.view({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) flat[i] = gradient_at(step, i);
}

/// Computes Loshchilov & Hutter 2019, algorithm 2, for one element.
double reference_weight(double weight, int64_t element, int64_t steps, double learning_rate,
                        double weight_decay) {
  double m = 0, v = 0;
  for (int64_t t = 1; t <= steps; ++t) {
    const double g = gradient_at(t, element);
    m = kOptions.beta1 * m + (1 - kOptions.beta1) * g;
    v = kOptions.beta2 * v + (1 - kOptions.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(kOptions.beta1, t)), v_hat = v / (1 - std::pow(kOptions.beta2, t));
    weight = weight - learning_rate * weight_decay * weight -
             learning_rate * m_hat / (std::sqrt(v_hat) + kOptions.eps);
  }
  return weight;
}

void run_steps_(AdamW& optimizer, const ParameterPtr& parameter, int64_t steps) {
  for (int64_t step = 1; step <= steps; ++step) {
    set_gradient_(parameter, step);
    optimizer.step_(step, /*learning_rate=*/0.1);
  }
}

/// As run_steps_, with gradients eight times as large that the optimizer scales by an eighth.
void run_scaled_steps_(AdamW& optimizer, const ParameterPtr& parameter, int64_t steps) {
  for (int64_t step = 1; step <= steps; ++step) {
    set_gradient_(parameter, step);
    parameter->main_grad.mul_(8);
    optimizer.step_(step, /*learning_rate=*/0.1, /*gradient_scale=*/0.125);
  }
}

void expect_reference(const Tensor& weights, double weight_decay, double tolerance) {
  const Tensor flat = weights.view({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) {
    EXPECT_NEAR(flat[i].item<double>(), reference_weight(weight_at(i), i, 5, 0.1, weight_decay), tolerance)
        << i;
  }
}

nn::UsedParameters used_parameters(const ParameterPtr& parameter) {
  return {{parameter, nn::ParameterUse::sharded}};
}

TEST(AdamW, FollowsTheFormulaInFp64) {
  const ParameterPtr parameter = make_parameter({3, 5}, at::kDouble);
  set_weights_(parameter);
  AdamW optimizer(used_parameters(parameter), kOptions);
  run_steps_(optimizer, parameter, 5);
  expect_reference(parameter->value.detach(), kOptions.weight_decay, 1e-14);
}

TEST(AdamW, FollowsTheFormulaInFp32) {
  const ParameterPtr parameter = make_parameter({7, 5}, at::kFloat);
  set_weights_(parameter);
  AdamW optimizer(used_parameters(parameter), kOptions);
  run_steps_(optimizer, parameter, 5);
  // Five updates of size 0.1 on weights up to 10: a few roundings of 6e-8 each.
  expect_reference(parameter->value.detach(), kOptions.weight_decay, 5e-6);
}

TEST(AdamW, ScalesTheGradientAndLeavesItAsItIs) {
  const ParameterPtr one = make_parameter({7, 5}, at::kFloat), other = make_parameter({7, 5}, at::kFloat);
  set_weights_(one);
  set_weights_(other);
  AdamW optimizer(used_parameters(one), kOptions), scaling(used_parameters(other), kOptions);
  run_steps_(optimizer, one, 5);
  run_scaled_steps_(scaling, other, 5);
  EXPECT_TRUE(other->value.detach().equal(one->value.detach()));
  EXPECT_TRUE(other->main_grad.equal(one->main_grad * 8));
}

TEST(AdamW, ZeroesTheGradientInTheSamePass) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const ParameterPtr one = make_parameter({7, 5}, dtype), other = make_parameter({7, 5}, dtype);
    set_weights_(one);
    set_weights_(other);
    AdamW optimizer(used_parameters(one), kOptions), zeroing(used_parameters(other), kOptions);
    run_steps_(optimizer, one, 5);
    for (int64_t step = 1; step <= 5; ++step) {
      set_gradient_(other, step);
      zeroing.step_and_zero_grad_(step, /*learning_rate=*/0.1);
      EXPECT_TRUE(other->main_grad.equal(at::zeros_like(other->main_grad))) << dtype;
    }
    EXPECT_TRUE(other->value.detach().equal(one->value.detach())) << dtype;
    EXPECT_TRUE(zeroing.state()[0].exp_avg_sq.equal(optimizer.state()[0].exp_avg_sq)) << dtype;
  }
}

TEST(AdamW, DoesNotDecayOneDimensionalParameters) {
  const ParameterPtr parameter = make_parameter({6}, at::kDouble);
  set_weights_(parameter);
  AdamW optimizer(used_parameters(parameter), kOptions);
  run_steps_(optimizer, parameter, 5);
  expect_reference(parameter->value.detach(), /*weight_decay=*/0, 1e-14);
}

TEST(AdamW, Bf16WeightsAreRoundedFp32MasterWeights) {
  const ParameterPtr parameter = make_parameter({4, 4}, at::kBFloat16);
  set_weights_(parameter);
  AdamW optimizer(used_parameters(parameter), kOptions);
  const Tensor start = parameter->value.detach().to(at::kDouble).view({-1});
  run_steps_(optimizer, parameter, 5);
  const Tensor master = optimizer.state()[0].master;
  ASSERT_EQ(master.scalar_type(), at::kFloat);
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(master.view({-1})[i].item<double>(),
                reference_weight(start[i].item<double>(), i, 5, 0.1, kOptions.weight_decay), 5e-6);
  }
  EXPECT_TRUE(parameter->value.detach().equal(master.to(at::kBFloat16)));
}

TEST(AdamW, Fp32ModelsHaveNoMasterWeights) {
  const ParameterPtr parameter = make_parameter({2, 2}, at::kFloat);
  EXPECT_FALSE(AdamW(used_parameters(parameter), kOptions).state()[0].master.defined());
}

TEST(AdamW, SkipsEmptyShards) {
  const ParameterPtr parameter = make_parameter({0, 5}, at::kFloat);
  AdamW optimizer(used_parameters(parameter), kOptions);
  optimizer.step_(1, 0.1);
  EXPECT_EQ(parameter->value.numel(), 0);
}

}  // namespace
}  // namespace shardwise::train::optimizer_test
