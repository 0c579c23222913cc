#include "shardwise/nn/rotary.h"

#include <gtest/gtest.h>

namespace shardwise::nn::rotary_test {
namespace {

TEST(Rotary, KeepsTablesThatFitAndGrowsThemElse) {
  Rotary rotary({1, 0.5});
  const void* const first = rotary.tables(4, at::kFloat).cos.const_data_ptr();
  EXPECT_EQ(rotary.tables(4, at::kFloat).cos.const_data_ptr(), first);
  EXPECT_EQ(rotary.tables(3, at::kBFloat16).cos.const_data_ptr(), first);
  EXPECT_EQ(rotary.tables(5, at::kFloat).cos.size(0), 5);
}

TEST(Rotary, MakesTablesInTheDtypeOfTheModelsAccumulators) {
  Rotary rotary({1, 0.5});
  EXPECT_EQ(rotary.tables(4, at::kFloat).cos.scalar_type(), at::kFloat);
  EXPECT_EQ(rotary.tables(4, at::kDouble).cos.scalar_type(), at::kDouble);
  EXPECT_EQ(rotary.tables(4, at::kBFloat16).cos.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace shardwise::nn::rotary_test
