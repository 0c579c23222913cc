#include "tests/support/rounding.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <numeric>
#include <span>
#include <utility>

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

namespace {

/// SplitMix64 (Steele, Lea and Flood 2014): all draws for one tensor. Drawing each by a torch generator took
/// half of the time of the references.
class Uniform {
 public:
  explicit Uniform(uint64_t seed) : state_(seed) {}
  /// Returns two numbers from -1 to 1.
  std::pair<double, double> next() {
    uint64_t bits = state_ += 0x9e3779b97f4a7c15;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    bits ^= bits >> 31;
    return {from(static_cast<uint32_t>(bits)), from(static_cast<uint32_t>(bits >> 32))};
  }

 private:
  static double from(uint32_t bits) { return (bits + 0.5) * 0x1p-31 - 1; }
  uint64_t state_;
};

double root_mean_square(std::span<const double> row) {
  return std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0) /
                   static_cast<double>(row.size()));
}

}  // namespace

struct Rounding::Disturb : torch::autograd::Function<Disturb> {
  using Random = std::shared_ptr<at::Generator>;

  static at::Tensor changed(const at::Tensor& x, Error error, const Random& random) {
    at::Tensor result = x.clone(at::MemoryFormat::Contiguous);
    if (x.numel() == 0 || (error.storing == 0 && error.adding == 0)) return result;
    Uniform uniform(at::check_generator<at::CPUGeneratorImpl>(*random)->random64());
    const int64_t width = x.dim() == 0 ? 1 : x.size(-1);
    auto* const data = result.mutable_data_ptr<double>();
    for (int64_t begin = 0; begin < x.numel(); begin += width) {
      const std::span row(data + begin, static_cast<size_t>(width));
      const double adding = error.adding * root_mean_square(row);
      for (double& value : row) {
        const auto [of_storing, of_adding] = uniform.next();
        value += value * error.storing * of_storing + adding * of_adding;
      }
    }
    return result;
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
