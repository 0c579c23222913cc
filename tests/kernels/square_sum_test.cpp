#include "shardwise/kernels/square_sum.h"

#include <cmath>

#include "shardwise/kernels/square_sum_isa.h"
#include "tests/kernels/support.h"
#include "tests/support/instruction_set.h"

namespace shardwise::kernels::square_sum_test {
namespace {

TEST(SquareSum, IsTheSumInFp64) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t n : {0, 1, 7, 4095, 4096, 4097, 100000}) {
      const at::Tensor x = random_tensor({n}, 1, dtype);
      const double expected = wide(x).square().sum().item<double>();
      EXPECT_NEAR(square_sum(x), expected, 1e-13 * expected) << dtype << " " << n;
    }
  }
}

TEST(SquareSum, DoesNotOverflowFp32AndPropagatesNanAndInfinity) {
  at::Tensor x = random_tensor({5000}, 1, at::kFloat);
  x[4500] = 3e38;
  EXPECT_NEAR(square_sum(x), 9e76, 1e71);
  x[4999] = INFINITY;
  EXPECT_EQ(square_sum(x), INFINITY);
  x[0] = NAN;
  EXPECT_TRUE(std::isnan(square_sum(x)));
}

TEST(SquareSum, HasTheSameBitsForAnyNumberOfThreads) {
  const at::Tensor x = random_tensor({1000003}, 1, at::kFloat);
  double one;
  {
    const Threads threads(1);
    one = square_sum(x);
  }
  const Threads threads(2);
  EXPECT_EQ(square_sum(x), one);
}

class SquareSumLoopsOf : public testing::EveryIsa {};

TEST_P(SquareSumLoopsOf, SumEveryElementOnce) {
  const std::vector<float> ones(200, 2);
  for (int64_t n = 0; n <= 200; ++n)
    EXPECT_EQ(square_sum_loops<float>(GetParam()).sum(ones.data(), n), 4. * n);
}
SHARDWISE_EVERY_ISA(SquareSumLoopsOf);

}  // namespace
}  // namespace shardwise::kernels::square_sum_test
