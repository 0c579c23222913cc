#include "shardwise/kernels/finite.h"

#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "tests/kernels/support.h"

namespace shardwise::kernels::finite_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                 kInfinite = std::numeric_limits<double>::infinity();

void expect_nan(const std::optional<double>& found) {
  ASSERT_TRUE(found);
  EXPECT_TRUE(std::isnan(*found)) << *found;
}

// Rows of 600 values: two vectorized runs and a remainder.
TEST(FirstNanOrInf, FindsAValueAtAnyPosition) {
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x = random_tensor({5, 600}, /*seed=*/1).to(dtype);
    EXPECT_FALSE(first_nan_or_inf(x)) << dtype;
    for (const int64_t row : {0, 2, 4}) {
      for (const int64_t column : {0, 255, 256, 511, 512, 599}) {
        const at::Tensor place = x[row][column], before = place.clone();
        place.fill_(-kInfinite);
        EXPECT_EQ(first_nan_or_inf(x), -kInfinite) << dtype << " " << row << " " << column;
        place.fill_(kNan);
        expect_nan(first_nan_or_inf(x));
        place.copy_(before);
      }
    }
  }
}

TEST(FirstNanOrInf, AcceptsTheLargestFiniteNumbers) {
  for (const auto& [dtype, largest] : {std::pair(at::kDouble, std::numeric_limits<double>::max()),
                                       {at::kFloat, double{std::numeric_limits<float>::max()}},
                                       {at::kBFloat16, 0x1.fep127},
                                       {at::kHalf, 65504.}}) {
    const at::Tensor x = at::zeros({3, 300}, dtype);
    x[1][7].fill_(largest);
    x[2][299].fill_(-largest);
    EXPECT_FALSE(first_nan_or_inf(x)) << dtype;
  }
}

TEST(FirstNanOrInf, ReturnsTheFirstRowForAnyThreadSchedule) {
  const Threads threads(2);
  const at::Tensor x = at::zeros({400, 1000}, at::kFloat);
  for (const int64_t row : {399, 200, 199, 3}) {
    x[row].fill_(row % 2 == 0 ? kInfinite : -kInfinite);
    EXPECT_EQ(first_nan_or_inf(x), row % 2 == 0 ? kInfinite : -kInfinite) << row;
  }
}

TEST(FirstNanOrInf, ReadsOnlyTheGivenSliceOrTranspose) {
  const at::Tensor x = at::zeros({6, 700}, at::kFloat);
  x[0].fill_(kNan);
  x.select(/*dim=*/1, 0).fill_(kNan);
  const at::Tensor part = x.narrow(/*dim=*/0, 1, 5).narrow(/*dim=*/1, 1, 699);
  EXPECT_FALSE(first_nan_or_inf(part));
  EXPECT_FALSE(first_nan_or_inf(part.t()));
  part[4][698].fill_(kInfinite);
  EXPECT_EQ(first_nan_or_inf(part), kInfinite);
  EXPECT_EQ(first_nan_or_inf(part.t()), kInfinite);
}

TEST(FirstNanOrInf, AcceptsVectorsScalarsEmptyAndIntegerTensors) {
  const at::Tensor x = at::zeros({5}, at::kFloat);
  EXPECT_FALSE(first_nan_or_inf(x));
  x[4].fill_(kInfinite);
  EXPECT_EQ(first_nan_or_inf(x), kInfinite);
  EXPECT_EQ(first_nan_or_inf(x[4]), kInfinite);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0}, {0, 4}, {4, 0}}) {
    EXPECT_FALSE(first_nan_or_inf(at::zeros(shape, at::kFloat)));
  }
  EXPECT_FALSE(first_nan_or_inf(at::zeros({2, 2}, at::kInt)));
}

}  // namespace
}  // namespace shardwise::kernels::finite_test
