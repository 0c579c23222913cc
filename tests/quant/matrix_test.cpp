#include "shardwise/quant/matrix.h"

#include <gtest/gtest.h>

namespace shardwise::testing::matrix_test {
namespace {

TEST(Matrix, CountsItsBytes) {
  const auto m = quant::Matrix::empty({4, 8}, 3, 53, {13, 40});  // words 1 to 5, groups 1 to 5
  EXPECT_EQ(m.bytes(), 3 * (4 * 4 + 4 * 4 + 4));
}

}  // namespace
}  // namespace shardwise::testing::matrix_test
