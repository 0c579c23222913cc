#include "shardwise/kernels/grad.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "tests/kernels/support.h"

namespace shardwise::kernels::grad_test {
namespace {

at::ScalarType accumulator(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

struct Shape {
  int64_t n, o, i;
};
const std::vector<Shape> kShapes = {{1, 1, 1}, {17, 33, 101}, {300, 5, 64}, {1101, 150, 130},
                                    {0, 3, 4}, {4, 0, 3},     {4, 3, 0}};

TEST(Grad, WeightGradientIsAccumulatedInFp32) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [n, o, i] : kShapes) {
      const at::Tensor dy = random_tensor({n, o}, 1, dtype), x = random_tensor({n, i}, 2, dtype);
      const at::Tensor start = random_tensor({o, i}, 3, accumulator(dtype));
      at::Tensor grad = start.clone();
      add_weight_grad_(grad, dy, x);
      const at::Tensor expected = wide(start) + at::matmul(wide(dy).t(), wide(x));
      // Sums of n terms in fp32 (fp64) for every dtype: accumulating in bf16 would exceed this bound by far.
      EXPECT_LE(relative_error(grad, expected),
                bound(accumulator(dtype), 4 + 2 * std::sqrt(static_cast<double>(n))))
          << dtype << " " << n << " " << o << " " << i;
    }
  }
}

TEST(Grad, BiasGradientIsAccumulatedInFp32) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [n, o] :
         {std::pair<int64_t, int64_t>{1, 1}, {17, 101}, {300, 33}, {2053, 600}, {0, 3}, {3, 0}}) {
      const at::Tensor dy = random_tensor({n, o}, 1, dtype),
                       start = random_tensor({o}, 2, accumulator(dtype));
      at::Tensor grad = start.clone();
      add_bias_grad_(grad, dy);
      EXPECT_LE(relative_error(grad, wide(start) + wide(dy).sum(0)), bound(accumulator(dtype), 16))
          << dtype << n;
    }
  }
}

TEST(Grad, IsBitwiseIndependentOfThreadCount) {
  const at::Tensor dy = random_tensor({1031, 257}, 4, at::kFloat);
  std::vector<at::Tensor> grads;
  for (const int count : {1, 3}) {
    const Threads threads(count);
    grads.push_back(at::zeros({257}));
    add_bias_grad_(grads.back(), dy);
  }
  EXPECT_TRUE(same_bits(grads[0], grads[1]));
}

TEST(Grad, RejectsMismatchedShapes) {
  at::Tensor grad = at::zeros({3, 4}), bias_grad = at::zeros({3});
  EXPECT_THROW(add_weight_grad_(grad, at::zeros({5, 3}), at::zeros({6, 4})), c10::ValueError);
  EXPECT_THROW(add_weight_grad_(grad, at::zeros({5, 4}), at::zeros({5, 3})), c10::ValueError);
  EXPECT_THROW(add_weight_grad_(grad, at::zeros({5, 3}, at::kDouble), at::zeros({5, 4}, at::kDouble)),
               c10::ValueError);
  EXPECT_THROW(add_bias_grad_(bias_grad, at::zeros({5, 4})), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::grad_test
