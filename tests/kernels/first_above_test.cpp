#include "shardwise/kernels/first_above.h"

#include <ATen/ops/full.h>

#include <cmath>
#include <limits>

#include "tests/kernels/support.h"

namespace shardwise::kernels::first_above_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

// Two vectorized blocks and a remainder.
constexpr int64_t kWidth = 600;

TEST(FirstAbove, FindsTheFirstOfTwoAtAnyPosition) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t position : {0, 1, 255, 256, 300, 511, 512, 598}) {
      for (const double value : {2.0, kInfinity, kNaN}) {
        const at::Tensor row = at::full({kWidth}, -1, dtype);
        row[position].fill_(value);
        row[599].fill_(3);
        EXPECT_EQ(first_above(row, 0, 1), position) << dtype << " " << value;
        EXPECT_EQ(first_above(row, position, 1), position) << dtype << " " << value;
        EXPECT_EQ(first_above(row, position + 1, 1), 599) << dtype << " " << value;
      }
    }
  }
}

TEST(FirstAbove, DoesNotCountEqualValues) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const double bound : {1.5, 0.0, kInfinity, -kInfinity})
      EXPECT_EQ(first_above(at::full({kWidth}, bound, dtype), 0, bound), kWidth) << dtype << " " << bound;
  }
}

TEST(FirstAbove, FindsOnlyNaNAboveInfinity) {
  const at::Tensor row = at::full({kWidth}, kInfinity, at::kFloat);
  row[400].fill_(kNaN);
  EXPECT_EQ(first_above(row, 0, kInfinity), 400);
}

// The nearest float is above the bound, so that it must not become the bound.
TEST(FirstAbove, RoundsTheBoundDown) {
  const float value = 0.1F;
  ASSERT_GT(double{value}, 0.1);
  EXPECT_EQ(first_above(at::full({kWidth}, value, at::kFloat), 0, 0.1), 0);
}

TEST(FirstAbove, AcceptsAnEmptyRow) {
  EXPECT_EQ(first_above(at::full({0}, 1, at::kFloat), 0, 0), 0);
}

TEST(FirstAbove, RefusesRowsThatAreNotContiguousVectors) {
  EXPECT_THROW(first_above(at::full({4, 4}, 1, at::kFloat), 0, 0), c10::ValueError);
  EXPECT_THROW(first_above(at::full({4, 4}, 1, at::kFloat).select(1, 0), 0, 0), c10::ValueError);
  EXPECT_THROW(first_above(at::full({4}, 1, at::kLong), 0, 0), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::first_above_test
