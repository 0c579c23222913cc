#include "tests/support/rounding.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

namespace shardwise::testing {

double unit_roundoff(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::ldexp(1, -53);
    case at::kFloat:
      return std::ldexp(1, -24);
    default:
      return std::ldexp(1, -8);  // bf16
  }
}

Rounding::Rounding(at::ScalarType dtype, uint64_t seed)
    : unit_(unit_roundoff(dtype)),
      sum_unit_(unit_roundoff(dtype == at::kDouble ? at::kDouble : at::kFloat)),
      random_(std::make_shared<at::Generator>(at::make_generator<at::CPUGeneratorImpl>(seed))) {}

struct Rounding::Disturb : torch::autograd::Function<Disturb> {
  using Random = std::shared_ptr<at::Generator>;

  static at::Tensor uniform(const at::Tensor& like, const Random& random) {
    return at::rand(like.sizes(), *random, like.options()) * 2 - 1;
  }

  static at::Tensor changed(const at::Tensor& x, Error error, const Random& random) {
    if (x.numel() == 0 || (error.storing == 0 && error.adding == 0)) return x.clone();
    const at::Tensor row = x.dim() == 0 ? x.abs() : (x * x).mean(-1, /*keepdim=*/true).sqrt();
    return x + x * error.storing * uniform(x, random) + row * error.adding * uniform(x, random);
  }

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Error value,
                            Error gradient, Random random) {
    context->saved_data["storing"] = gradient.storing;
    context->saved_data["adding"] = gradient.adding;
    context->saved_data["random"] = *random;
    return changed(x, value, random);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Error error{context->saved_data["storing"].toDouble(), context->saved_data["adding"].toDouble()};
    const auto random = std::make_shared<at::Generator>(context->saved_data["random"].toGenerator());
    return {changed(gradients[0], error, random), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

Rounding::Error Rounding::error(double unit, int64_t terms) const {
  // n terms give n intermediate sums, each rounded: together a variance of u² n / 6 relative to the sum's
  // square (§2).
  const double adding = terms > 1 ? sum_unit_ * std::sqrt(static_cast<double>(terms) / 2) : 0;
  return {unit, adding};
}

at::Tensor Rounding::disturbed(const at::Tensor& x, Error value, Error gradient) const {
  return random_ ? Disturb::apply(x, value, gradient, random_) : x;
}

at::Tensor Rounding::stored(const at::Tensor& x, Terms terms) const {
  return disturbed(x, error(unit_, terms.value), error(unit_, terms.gradient));
}

at::Tensor Rounding::branch(const at::Tensor& x, int64_t gradient_terms) const {
  return disturbed(x, {}, error(unit_, gradient_terms));
}

at::Tensor Rounding::kept(const at::Tensor& x, Terms terms) const {
  return disturbed(x, error(sum_unit_, terms.value), error(sum_unit_, terms.gradient));
}

at::Tensor Rounding::weight(const at::Tensor& x, int64_t gradient_terms) const {
  return disturbed(x, {}, error(sum_unit_, gradient_terms));
}

}  // namespace shardwise::testing
