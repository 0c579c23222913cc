#include "shardwise/nn/rotary.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace shardwise::nn::rotary_test {
namespace {

at::Tensor tokens(at::ScalarType dtype) {
  return at::empty({1}, dtype);
}

TEST(Rotary, KeepsTablesThatFitAndGrowsThemElse) {
  Rotary rotary({1, 0.5});
  const void* const first = rotary.tables(4, tokens(at::kFloat)).cos.const_data_ptr();
  EXPECT_EQ(rotary.tables(4, tokens(at::kFloat)).cos.const_data_ptr(), first);
  EXPECT_EQ(rotary.tables(3, tokens(at::kBFloat16)).cos.const_data_ptr(), first);
  EXPECT_EQ(rotary.tables(5, tokens(at::kFloat)).cos.size(0), 5);
}

TEST(Rotary, MakesTablesInTheDtypeOfTheModelsAccumulators) {
  Rotary rotary({1, 0.5});
  EXPECT_EQ(rotary.tables(4, tokens(at::kFloat)).cos.scalar_type(), at::kFloat);
  EXPECT_EQ(rotary.tables(4, tokens(at::kDouble)).cos.scalar_type(), at::kDouble);
  EXPECT_EQ(rotary.tables(4, tokens(at::kBFloat16)).cos.scalar_type(), at::kFloat);
}

TEST(Rotary, MakesTablesOnTheDeviceOfTheTokens) {
  Rotary rotary({1, 0.5});
  rotary.tables(4, tokens(at::kFloat));
  EXPECT_TRUE(rotary.tables(4, tokens(at::kFloat).to(at::kMeta)).sin.is_meta());
}

}  // namespace
}  // namespace shardwise::nn::rotary_test
