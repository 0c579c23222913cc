#include "shardwise/kernels/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <cmath>

#include "shardwise/kernels/adamw_isa.h"
#include "tests/kernels/support.h"
#include "tests/support/error_text.h"
#include "tests/support/instruction_set.h"

namespace shardwise::kernels::adamw_test {
namespace {

using at::Tensor;

constexpr AdamWStep kStep{.number = 3,
                          .learning_rate = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-4,
                          .weight_decay = 0.1,
                          .gradient_scale = 0.5};

AdamWTensors random_tensors(std::vector<int64_t> shape, at::ScalarType dtype) {
  return {.weights = random_tensor(shape, 1, dtype),
          .gradient = random_tensor(shape, 2, dtype),
          .exp_avg = random_tensor(shape, 3, dtype) * 0.1,
          .exp_avg_sq = random_tensor(shape, 4, dtype).square(),
          .rounded = Tensor()};
}

struct Moments {
  Tensor mean, square, weights;
};

/// The published formula, in fp64.
Moments expected(const AdamWTensors& x, const AdamWStep& step) {
  const Tensor g = wide(x.gradient) * step.gradient_scale;
  const Tensor mean = wide(x.exp_avg) * step.beta1 + g * (1 - step.beta1);
  const Tensor square = wide(x.exp_avg_sq) * step.beta2 + g * g * (1 - step.beta2);
  const auto t = static_cast<double>(step.number);
  const Tensor mean_hat = mean / (1 - std::pow(step.beta1, t)),
               square_hat = square / (1 - std::pow(step.beta2, t));
  const Tensor weights = wide(x.weights) * (1 - step.learning_rate * step.weight_decay) -
                         mean_hat / (square_hat.sqrt() + step.eps) * step.learning_rate;
  return {mean, square, weights};
}

TEST(AdamWKernel, MatchesTheFormulaInFp64) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t n : {0, 1, 7, 64, 1003, 100000}) {
      const AdamWTensors x = random_tensors({n}, dtype);
      const Moments formula = expected(x, kStep);
      adamw_(x, kStep);
      if (n == 0) continue;
      EXPECT_LE(relative_error(x.exp_avg, formula.mean), bound(dtype, 4)) << n;
      EXPECT_LE(relative_error(x.exp_avg_sq, formula.square), bound(dtype, 4)) << n;
      EXPECT_LE(relative_error(x.weights, formula.weights), bound(dtype, 16)) << n;
    }
  }
}

TEST(AdamWKernel, RoundsTheNewWeights) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    AdamWTensors x = random_tensors({3, 333}, at::kFloat);
    x.rounded = at::full({3, 333}, 7, at::TensorOptions(dtype));
    adamw_(x, kStep);
    EXPECT_TRUE(same_bits(x.rounded, x.weights.to(dtype)));
  }
}

TEST(AdamWKernel, ChecksShapesAndDtypes) {
  AdamWTensors x = random_tensors({5}, at::kFloat);
  x.gradient = random_tensor({6}, 2, at::kFloat);
  EXPECT_PRED2(test::contains, test::error_text([&] { adamw_(x, kStep); }), "adamw: gradient must be");
  AdamWTensors narrow = random_tensors({5}, at::kBFloat16);
  EXPECT_PRED2(test::contains, test::error_text([&] { adamw_(narrow, kStep); }), "adamw: weights must be");
}

class AdamWLoopsOf : public testing::EveryIsa {};

/// Replicas of a KV head lie at different positions on different ranks, and threads begin anywhere.
TEST_P(AdamWLoopsOf, AnElementsResultDoesNotDependOnItsPosition) {
  constexpr int64_t kMost = 150;
  for (int64_t n = 1; n <= kMost; ++n) {
    const AdamWTensors one = random_tensors({1}, at::kFloat);
    std::vector<float> w(n, one.weights.item<float>()), g(n, one.gradient.item<float>()),
        m(n, one.exp_avg.item<float>()), v(n, one.exp_avg_sq.item<float>());
    std::vector<Bf16> rounded(n);
    const AdamWFactors<float> by{0.3F, 0.999F, 0.1F, 0.05F, 0.95F, 0.02F, 3.1F, 1e-5F};
    const auto loops = adamw_loops<Bf16>(GetParam());
    const auto update = n % 2 == 0 ? loops.update : loops.update_and_zero;
    update({w.data(), g.data(), m.data(), v.data(), rounded.data()}, 0, n, by);
    for (int64_t i = 1; i < n; ++i) {
      ASSERT_EQ(g[i], n % 2 == 0 ? one.gradient.item<float>() : 0) << i << " of " << n;
      ASSERT_EQ(w[i], w[0]) << i << " of " << n;
      ASSERT_TRUE(m[i] == m[0] && v[i] == v[0] && rounded[i].bits == rounded[0].bits) << i << " of " << n;
    }
  }
}
SHARDWISE_EVERY_ISA(AdamWLoopsOf);

}  // namespace
}  // namespace shardwise::kernels::adamw_test
