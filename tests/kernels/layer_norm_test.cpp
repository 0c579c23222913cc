#include "shardwise/kernels/layer_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "tests/kernels/support.h"

namespace shardwise::kernels::layer_norm_test {
namespace {

constexpr double kEps = 1e-5;

struct Inputs {
  at::Tensor x, dy;
  Affine affine;
  Inputs(std::vector<int64_t> shape, at::ScalarType dtype)
      : x(random_tensor(shape, 1, dtype)),
        dy(random_tensor(shape, 3, dtype)),
        affine{random_tensor({shape.back()}, 2, dtype), random_tensor({shape.back()}, 4, dtype)} {}

  at::ScalarType wide_dtype() const { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }
  Affine gradients(double value) const {
    return {at::full({x.size(-1)}, value, wide_dtype()), at::full({x.size(-1)}, value, wide_dtype())};
  }
  RowMoments moments() const {
    const auto shape = x.sizes().slice(0, x.dim() - 1);
    at::Tensor y = at::empty_like(x);
    RowMoments moments{at::empty(shape, wide_dtype()), at::empty(shape, wide_dtype())};
    layer_norm_out(y, moments, x, affine, kEps);
    return moments;
  }
  at::Tensor backward(const Affine& gradients) const {
    return layer_norm_backward(dy, x, affine.weight, moments(), gradients);
  }
};

at::Tensor reference(const at::Tensor& x, const Affine& affine) {
  const at::Tensor centered = x - x.mean(-1, /*keepdim=*/true);
  return centered * (centered * centered).mean(-1, /*keepdim=*/true).add(kEps).rsqrt() * affine.weight +
         affine.bias;
}

void check(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  const Inputs in(shape, dtype);
  const at::Tensor x = leaf(in.x);
  const Affine affine{leaf(in.affine.weight), leaf(in.affine.bias)};
  const at::Tensor y = reference(x, affine);
  y.backward(wide(in.dy));
  const Affine gradients = in.gradients(1);
  const at::Tensor dx = in.backward(gradients);
  const auto expect = [&](const char* what, const at::Tensor& got, const at::Tensor& expected, double bound) {
    EXPECT_LE(relative_error(got, expected), bound) << what << " " << dtype << " " << shape;
  };
  expect("y", layer_norm(in.x, in.affine, kEps), y, bound(dtype, 16));
  // With one element y does not depend on x, and dx is a difference of equal numbers.
  if (shape.back() > 1) expect("dx", dx, x.grad(), bound(dtype, 64));
  if (shape.back() > 1)
    expect("d weight", gradients.weight - 1, affine.weight.grad(), bound(in.wide_dtype(), 256));
  expect("d bias", gradients.bias - 1, affine.bias.grad(), bound(in.wide_dtype(), 256));
  expect("mean", in.moments().mean, wide(in.x).mean(-1), bound(in.wide_dtype(), 32));
  EXPECT_EQ(dx.scalar_type(), dtype);
}

TEST(LayerNorm, ForwardAndBackwardMatchFp64Reference) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{3, 2, 1}, {5, 17}, {33}, {2, 3, 101}, {131, 2, 64}})
      check(shape, dtype);
  }
}

TEST(LayerNorm, GradientsMatchFiniteDifferences) {
  const Inputs in({4, 3, 33}, at::kDouble);
  const Affine gradients = in.gradients(0);
  const at::Tensor dx = in.backward(gradients);
  const auto value = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return testing::dot(layer_norm(x, {weight, bias}, kEps), in.dy);
  };
  expect_gradient([&](const at::Tensor& x) { return value(x, in.affine.weight, in.affine.bias); }, in.x, dx);
  expect_gradient([&](const at::Tensor& w) { return value(in.x, w, in.affine.bias); }, in.affine.weight,
                  gradients.weight);
  expect_gradient([&](const at::Tensor& b) { return value(in.x, in.affine.weight, b); }, in.affine.bias,
                  gradients.bias);
}

// mean(x²) − mean(x)² of such rows would have no correct digit in fp32.
TEST(LayerNorm, IsAccurateForALargeMean) {
  const at::Tensor x = random_tensor({7, 129}, 1, at::kFloat) + 10000;
  const Affine affine{at::ones({129}), at::zeros({129})};
  const at::Tensor expected = reference(wide(x), {wide(affine.weight), wide(affine.bias)});
  // x is exact; its mean has an error of about 2⁻²⁴ · 10⁴.
  EXPECT_LE(relative_error(layer_norm(x, affine, kEps), expected), 16 * 10000 * 0x1p-24);
}

TEST(LayerNorm, SkipsUndefinedGradients) {
  const Inputs in({70, 33}, at::kFloat);
  const Affine both = in.gradients(0), weight_alone{at::zeros({33}), {}}, bias_alone{{}, at::zeros({33})};
  const at::Tensor dx = in.backward(both);
  EXPECT_TRUE(same_bits(in.backward({}), dx));
  EXPECT_TRUE(same_bits(in.backward(weight_alone), dx));
  EXPECT_TRUE(same_bits(in.backward(bias_alone), dx));
  EXPECT_TRUE(same_bits(weight_alone.weight, both.weight));
  EXPECT_TRUE(same_bits(bias_alone.bias, both.bias));
}

TEST(LayerNorm, IsBitwiseIndependentOfThreadCount) {
  const Inputs in({1031, 257}, at::kFloat);
  std::vector<Affine> gradients;
  for (const int count : {1, 3}) {
    const Threads threads(count);
    gradients.push_back(in.gradients(0));
    in.backward(gradients.back());
  }
  EXPECT_TRUE(same_bits(gradients[0].weight, gradients[1].weight));
  EXPECT_TRUE(same_bits(gradients[0].bias, gradients[1].bias));
}

TEST(LayerNorm, AcceptsNonContiguousAndEmptyInputs) {
  const Inputs in({5, 33}, at::kFloat);
  const at::Tensor x = random_tensor({33, 5}, 1, at::kFloat).t();
  EXPECT_TRUE(same_bits(layer_norm(x, in.affine, kEps), layer_norm(x.contiguous(), in.affine, kEps)));
  EXPECT_EQ(layer_norm(at::empty({0, 2, 33}), in.affine, kEps).sizes(), at::IntArrayRef({0, 2, 33}));
  const Affine gradients = in.gradients(1);
  layer_norm_backward(at::empty({0, 33}), at::empty({0, 33}), in.affine.weight,
                      {at::empty({0}), at::empty({0})}, gradients);
  EXPECT_TRUE(same_bits(gradients.weight, at::ones({33})));
  EXPECT_TRUE(same_bits(gradients.bias, at::ones({33})));
}

TEST(LayerNorm, RejectsMismatchedShapes) {
  const at::Tensor x = at::zeros({2, 4}), four = at::zeros({4}), five = at::zeros({5});
  EXPECT_THROW(layer_norm(x, {five, four}, kEps), c10::ValueError);
  EXPECT_THROW(layer_norm(x, {four, five}, kEps), c10::ValueError);
  EXPECT_THROW(layer_norm(x, {four, four.to(at::kDouble)}, kEps), c10::ValueError);
  EXPECT_THROW(layer_norm(at::zeros({2, 0}), {at::zeros({0}), at::zeros({0})}, kEps), c10::ValueError);
  EXPECT_THROW(layer_norm_backward(x, x, four, {at::zeros({2}), at::zeros({2})}, {five, four}),
               c10::ValueError);
  EXPECT_THROW(layer_norm_backward(x, x, four, {at::zeros({2}), at::zeros({3})}, {}), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::layer_norm_test
