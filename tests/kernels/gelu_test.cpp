#include "shardwise/kernels/gelu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <numbers>

#include "tests/kernels/support.h"

namespace shardwise::kernels::gelu_test {
namespace {

constexpr Gelu kForms[] = {Gelu::erf, Gelu::tanh};

at::Tensor reference(const at::Tensor& z, Gelu form) {
  if (form == Gelu::erf) return z * 0.5 * (1 + at::erf(z / std::numbers::sqrt2));
  return z * 0.5 * (1 + at::tanh(std::sqrt(2 / std::numbers::pi) * (z + 0.044715 * z * z * z)));
}

struct Inputs {
  at::Tensor x, bias, dy;
  Inputs(std::vector<int64_t> shape, at::ScalarType dtype)
      : x(random_tensor(shape, 1, dtype) * 3),
        bias(random_tensor({shape.back()}, 2, dtype)),
        dy(random_tensor(shape, 3, dtype)) {}
  at::Tensor zero_grad() const {
    return at::zeros({x.size(-1)}, x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }
};

void check(const std::vector<int64_t>& shape, at::ScalarType dtype, Gelu form) {
  const Inputs in(shape, dtype);
  const at::Tensor x = leaf(in.x), bias = leaf(in.bias), y = reference(x + bias, form);
  y.backward(wide(in.dy));
  at::Tensor bias_grad = in.zero_grad() + 1;
  const at::Tensor dx = gelu_backward(in.dy, in.x, in.bias, form, bias_grad);
  EXPECT_LE(relative_error(gelu(in.x, in.bias, form), y), bound(dtype, 16)) << dtype << " " << shape;
  EXPECT_LE(relative_error(dx, x.grad()), bound(dtype, 32)) << dtype << " " << shape;
  EXPECT_LE(relative_error(bias_grad - 1, bias.grad()), bound(bias_grad.scalar_type(), 256))
      << dtype << " " << shape;
  EXPECT_EQ(dx.scalar_type(), dtype);
}

TEST(Gelu, ForwardAndBackwardMatchFp64Reference) {
  for (const Gelu form : kForms) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const std::vector<int64_t>& shape :
           {std::vector<int64_t>{3, 2, 1}, {5, 17}, {33}, {2, 3, 101}, {131, 2, 64}, {67, 1031}})
        check(shape, dtype, form);
    }
  }
}

TEST(Gelu, GradientsMatchFiniteDifferences) {
  const Inputs in({5, 33}, at::kDouble);
  for (const Gelu form : kForms) {
    at::Tensor bias_grad = in.zero_grad();
    const at::Tensor dx = gelu_backward(in.dy, in.x, in.bias, form, bias_grad);
    expect_gradient([&](const at::Tensor& x) { return testing::dot(gelu(x, in.bias, form), in.dy); }, in.x,
                    dx);
    expect_gradient([&](const at::Tensor& b) { return testing::dot(gelu(in.x, b, form), in.dy); }, in.bias,
                    bias_grad);
  }
}

// 1 + 2⁻⁸ rounds to 1 in bf16. Where gelu's slope is above 1/2, half a unit in the last place of x changes
// gelu by one.
TEST(Gelu, DoesNotRoundTheSumWithTheBias) {
  const at::Tensor x = at::full({1, 1}, 1, at::kBFloat16), bias = at::full({1}, 0x1p-8, at::kBFloat16);
  for (const Gelu form : kForms) {
    const at::Tensor exact = reference(wide(x) + wide(bias), form);
    EXPECT_TRUE(same_bits(gelu(x, bias, form), exact.to(at::kBFloat16)));
    EXPECT_FALSE(same_bits(gelu(x + bias, {}, form), exact.to(at::kBFloat16))) << "the case shows nothing";
  }
}

TEST(Gelu, WithoutBiasEqualsZeroBias) {
  const Inputs in({5, 33}, at::kFloat);
  for (const Gelu form : kForms) {
    EXPECT_TRUE(same_bits(gelu(in.x, {}, form), gelu(in.x, at::zeros({33}), form)));
    EXPECT_TRUE(same_bits(gelu_backward(in.dy, in.x, {}, form, {}),
                          gelu_backward(in.dy, in.x, at::zeros({33}), form, in.zero_grad())));
  }
}

TEST(Gelu, IsFiniteForLargeInputs) {
  const double huge = 3e38;
  for (const Gelu form : kForms) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::tensor({-huge, -200., -30., 30., 200., huge}, dtype).view({1, 6});
      const at::Tensor y = gelu(x, {}, form), dx = gelu_backward(at::ones_like(x), x, {}, form, {});
      EXPECT_TRUE(y.slice(1, 0, 3).eq(0).all().item<bool>() || dtype == at::kDouble);
      EXPECT_LE(y.slice(1, 0, 3).abs().max().item<double>(), 1e-190);
      EXPECT_TRUE(same_bits(y.slice(1, 3), x.slice(1, 3)));
      EXPECT_LE(dx.slice(1, 0, 3).abs().max().item<double>(), 1e-190);
      EXPECT_TRUE(dx.slice(1, 3).eq(1).all().item<bool>());
    }
  }
}

TEST(Gelu, PropagatesNaN) {
  const at::Tensor x = at::full({1, 3}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
  for (const Gelu form : kForms) {
    EXPECT_TRUE(gelu(x, {}, form).isnan().all().item<bool>());
    EXPECT_TRUE(gelu_backward(at::ones_like(x), x, {}, form, {}).isnan().all().item<bool>());
  }
}

TEST(Gelu, IsBitwiseIndependentOfThreadCount) {
  const Inputs in({1031, 257}, at::kFloat);
  std::vector<at::Tensor> dx, bias_grads;
  for (const int count : {1, 3}) {
    const Threads threads(count);
    bias_grads.push_back(in.zero_grad());
    dx.push_back(gelu_backward(in.dy, in.x, in.bias, Gelu::erf, bias_grads.back()));
  }
  EXPECT_TRUE(same_bits(dx[0], dx[1]));
  EXPECT_TRUE(same_bits(bias_grads[0], bias_grads[1]));
}

TEST(Gelu, AcceptsNonContiguousAndEmptyInputs) {
  const at::Tensor x = random_tensor({33, 5}, 5, at::kFloat).t(), bias = random_tensor({33}, 6, at::kFloat);
  EXPECT_TRUE(same_bits(gelu(x, bias, Gelu::erf), gelu(x.contiguous(), bias, Gelu::erf)));
  // A transposed gradient, and the expanded gradient of a sum.
  for (const at::Tensor& dy : {random_tensor({33, 5}, 7, at::kFloat).t(), at::ones({1, 1}).expand({5, 33})}) {
    EXPECT_TRUE(same_bits(gelu_backward(dy, x, bias, Gelu::erf, {}),
                          gelu_backward(dy.contiguous(), x.contiguous(), bias, Gelu::erf, {})));
  }
  EXPECT_EQ(gelu(at::zeros({0, 3, 8}), {}, Gelu::tanh).sizes(), at::IntArrayRef({0, 3, 8}));
  EXPECT_EQ(gelu(at::zeros({4, 0}), {}, Gelu::tanh).sizes(), at::IntArrayRef({4, 0}));
  at::Tensor bias_grad = at::ones({8});
  gelu_backward(at::zeros({0, 8}), at::zeros({0, 8}), at::zeros({8}), Gelu::erf, bias_grad);
  EXPECT_TRUE(same_bits(bias_grad, at::ones({8})));
}

TEST(Gelu, RejectsMismatchedShapes) {
  const at::Tensor x = at::zeros({2, 4}), five = at::zeros({5});
  EXPECT_THROW(gelu(x, five, Gelu::erf), c10::ValueError);
  EXPECT_THROW(gelu(x, at::zeros({4}, at::kDouble), Gelu::erf), c10::ValueError);
  EXPECT_THROW(gelu(at::zeros({}), {}, Gelu::erf), c10::ValueError);
  EXPECT_THROW(gelu_backward(at::zeros({2, 5}), x, {}, Gelu::erf, {}), c10::ValueError);
  EXPECT_THROW(gelu_backward(x, x, {}, Gelu::erf, five), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::gelu_test
