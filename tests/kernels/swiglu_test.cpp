#include "shardwise/kernels/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "tests/kernels/support.h"

namespace shardwise::kernels::swiglu_test {
namespace {

at::Tensor reference(const at::Tensor& gate_up) {
  const auto parts = gate_up.chunk(2, -1);
  return at::silu(parts[0]) * parts[1];
}

TEST(Swiglu, ForwardAndBackwardMatchFp64Reference) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t f : {1, 17, 33, 101, 256}) {
      const at::Tensor gate_up = random_tensor({3, 2, 2 * f}, 1, dtype) * 3,
                       dy = random_tensor({3, 2, f}, 2, dtype);
      const at::Tensor x = leaf(gate_up), y = reference(x);
      y.backward(wide(dy));
      EXPECT_LE(relative_error(swiglu(gate_up), y), bound(dtype, 16)) << dtype << " " << f;
      EXPECT_LE(relative_error(swiglu_backward(dy, gate_up), x.grad()), bound(dtype, 32))
          << dtype << " " << f;
    }
  }
}

TEST(Swiglu, GradientMatchesFiniteDifferences) {
  const at::Tensor gate_up = random_tensor({5, 34}, 3), dy = random_tensor({5, 17}, 4);
  expect_gradient([&](const at::Tensor& x) { return testing::dot(swiglu(x), dy); }, gate_up,
                  swiglu_backward(dy, gate_up));
}

TEST(Swiglu, IsFiniteForLargeGates) {
  const double huge = 3e38;
  const at::Tensor gate_up =
      at::tensor({-huge, -200., -104., 104., 200., 1., 1., 1., 1., 1.}, at::kFloat).view({1, 10});
  const at::Tensor y = swiglu(gate_up);
  EXPECT_TRUE(y.isfinite().all().item<bool>());
  EXPECT_EQ(y[0][1].item<double>(), 0);
  EXPECT_EQ(y[0][3].item<double>(), 104);
  EXPECT_TRUE(swiglu_backward(at::ones_like(y), gate_up).isfinite().all().item<bool>());
}

TEST(Swiglu, PropagatesNaN) {
  const at::Tensor gate_up = at::tensor({std::numeric_limits<float>::quiet_NaN(), 1.f}).view({1, 2});
  EXPECT_TRUE(swiglu(gate_up).isnan().all().item<bool>());
  EXPECT_TRUE(swiglu(gate_up.to(at::kBFloat16)).isnan().all().item<bool>());
}

TEST(Swiglu, AcceptsNonContiguousAndEmptyAndRejectsOddInputs) {
  const at::Tensor wide_rows = random_tensor({34, 5}, 5, at::kFloat);
  EXPECT_TRUE(same_bits(swiglu(wide_rows.t()), swiglu(wide_rows.t().contiguous())));
  EXPECT_EQ(swiglu(at::zeros({0, 3, 8})).sizes(), at::IntArrayRef({0, 3, 4}));
  EXPECT_EQ(swiglu(at::zeros({4, 0})).sizes(), at::IntArrayRef({4, 0}));
  EXPECT_THROW(swiglu(at::zeros({2, 5})), c10::ValueError);
  EXPECT_THROW(swiglu_backward(at::zeros({2, 4}), at::zeros({2, 6})), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::swiglu_test
