#include "shardwise/kernels/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "tests/kernels/support.h"

namespace shardwise::kernels::rms_norm_test {
namespace {

constexpr double kEps = 1e-5;

at::Tensor reference(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x * x).mean(-1, /*keepdim=*/true).add(kEps).rsqrt() * weight;
}

struct Inputs {
  at::Tensor x, weight, dy;
  Inputs(std::vector<int64_t> shape, at::ScalarType dtype)
      : x(random_tensor(shape, 1, dtype)),
        weight(random_tensor({shape.back()}, 2, dtype)),
        dy(random_tensor(shape, 3, dtype)) {}
  at::ScalarType wide_dtype() const { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }
};

at::Tensor rstd_of(const Inputs& in) {
  at::Tensor y = at::empty_like(in.x),
             rstd = at::empty(in.x.sizes().slice(0, in.x.dim() - 1), in.wide_dtype());
  rms_norm_out(y, rstd, in.x, in.weight, kEps);
  return rstd;
}

TEST(RmsNorm, ForwardAndBackwardMatchFp64Reference) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{3, 2, 1}, {5, 17}, {33}, {2, 3, 101}, {131, 2, 64}}) {
      const Inputs in(shape, dtype);
      const at::Tensor x = leaf(in.x), weight = leaf(in.weight);
      const at::Tensor y = reference(x, weight);
      y.backward(wide(in.dy));
      at::Tensor weight_grad = at::ones({shape.back()}, in.wide_dtype());
      const at::Tensor rstd = rstd_of(in);
      const at::Tensor dx = rms_norm_backward(in.dy, in.x, in.weight, rstd, weight_grad);
      EXPECT_LE(relative_error(rms_norm(in.x, in.weight, kEps), y), bound(dtype, 16))
          << dtype << " " << shape;
      EXPECT_LE(relative_error(rstd, (wide(in.x).square().mean(-1) + kEps).rsqrt()),
                bound(in.wide_dtype(), 16));
      // With one element, y hardly depends on x: dx is a difference of nearly equal numbers.
      if (shape.back() > 1) {
        EXPECT_LE(relative_error(dx, x.grad()), bound(dtype, 64)) << dtype << " " << shape;
      }
      EXPECT_LE(relative_error(weight_grad - 1, weight.grad()), bound(in.wide_dtype(), 256))
          << dtype << " " << shape;
      EXPECT_EQ(dx.scalar_type(), dtype);
    }
  }
}

TEST(RmsNorm, GradientsMatchFiniteDifferences) {
  const Inputs in({4, 3, 33}, at::kDouble);
  at::Tensor weight_grad = at::zeros({33}, at::kDouble);
  const at::Tensor dx = rms_norm_backward(in.dy, in.x, in.weight, rstd_of(in), weight_grad);
  expect_gradient([&](const at::Tensor& x) { return testing::dot(rms_norm(x, in.weight, kEps), in.dy); },
                  in.x, dx);
  expect_gradient([&](const at::Tensor& w) { return testing::dot(rms_norm(in.x, w, kEps), in.dy); },
                  in.weight, weight_grad);
}

TEST(RmsNorm, SkipsAnUndefinedWeightGradient) {
  const Inputs in({5, 33}, at::kFloat);
  at::Tensor weight_grad = at::zeros({33}, at::kFloat);
  const at::Tensor with = rms_norm_backward(in.dy, in.x, in.weight, rstd_of(in), weight_grad);
  EXPECT_TRUE(same_bits(rms_norm_backward(in.dy, in.x, in.weight, rstd_of(in), at::Tensor()), with));
}

TEST(RmsNorm, IsBitwiseIndependentOfThreadCount) {
  const Inputs in({1031, 257}, at::kFloat);
  std::vector<at::Tensor> weight_grads;
  for (const int count : {1, 3}) {
    const Threads threads(count);
    weight_grads.push_back(at::zeros({257}, at::kFloat));
    rms_norm_backward(in.dy, in.x, in.weight, rstd_of(in), weight_grads.back());
  }
  EXPECT_TRUE(same_bits(weight_grads[0], weight_grads[1]));
}

TEST(RmsNorm, AcceptsNonContiguousAndEmptyInputs) {
  const Inputs in({33, 5}, at::kFloat);
  const at::Tensor weight = random_tensor({33}, 4, at::kFloat);
  EXPECT_TRUE(same_bits(rms_norm(in.x.t(), weight, kEps), rms_norm(in.x.t().contiguous(), weight, kEps)));
  EXPECT_EQ(rms_norm(at::empty({0, 2, 33}), weight, kEps).sizes(), at::IntArrayRef({0, 2, 33}));
  at::Tensor weight_grad = at::ones({33});
  rms_norm_backward(at::empty({0, 33}), at::empty({0, 33}), weight, at::empty({0}), weight_grad);
  EXPECT_TRUE(same_bits(weight_grad, at::ones({33})));
}

TEST(RmsNorm, RejectsMismatchedShapes) {
  const at::Tensor x = at::zeros({2, 4});
  EXPECT_THROW(rms_norm(x, at::zeros({5}), kEps), c10::ValueError);
  EXPECT_THROW(rms_norm(x, at::zeros({4}, at::kDouble), kEps), c10::ValueError);
  EXPECT_THROW(rms_norm(at::zeros({2, 4}, at::kInt), at::zeros({4}, at::kInt), kEps), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::rms_norm_test
