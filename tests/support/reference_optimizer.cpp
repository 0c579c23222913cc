#include "tests/support/reference_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

namespace shardwise::testing {

double reference_norm(const Tensors& gradients, double order) {
  double total = 0;
  for (const auto& [name, gradient] : gradients) {
    const at::Tensor size = gradient.abs();
    if (std::isinf(order)) {
      total = std::max(total, size.max().item<double>());
    } else {
      total += size.pow(order).sum().item<double>();
    }
  }
  return std::isinf(order) ? total : std::pow(total, 1 / order);
}

void reference_clip_(Tensors& gradients, double norm, double max_norm) {
  const double scale = std::min(1.0, max_norm / (norm + 1e-6));
  for (auto& [name, gradient] : gradients) gradient = gradient * scale;
}

void ReferenceAdamW::step_(Tensors& weights, const Tensors& gradients, int64_t step, double learning_rate) {
  const at::NoGradGuard no_grad;
  const auto& [beta1, beta2, eps, weight_decay] = options_;
  for (auto& [name, weight] : weights) {
    const at::Tensor& g = gradients.at(name);
    at::Tensor& m = mean_.try_emplace(name, at::zeros_like(g)).first->second;
    at::Tensor& v = square_.try_emplace(name, at::zeros_like(g)).first->second;
    m = m * beta1 + g * (1 - beta1);
    v = v * beta2 + g * g * (1 - beta2);
    const at::Tensor m_hat = m / (1 - std::pow(beta1, step)), v_hat = v / (1 - std::pow(beta2, step));
    const double decay = weight.dim() >= 2 ? weight_decay : 0;
    weight.copy_(weight - learning_rate * decay * weight - learning_rate * m_hat / (v_hat.sqrt() + eps));
  }
}

}  // namespace shardwise::testing
