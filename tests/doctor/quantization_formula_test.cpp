// The doctor's own formula of quantization, on values that are known by hand.
#include "shardwise/doctor/quantization_formula.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace shardwise::doctor::quantization_formula_test {
namespace {

at::Tensor row(std::initializer_list<double> values) {
  return at::tensor(at::ArrayRef<double>(values.begin(), values.size()), at::kDouble).unsqueeze(0);
}

TEST(QuantizedValues, AreMultiplesOfEachGroupsScale) {
  const at::Tensor w = row({7, 2.5, -1.4, 14, -3.1, 5, 0, 0, 0, -3.5});
  EXPECT_TRUE(quantized_values(w, 4, 3).equal(row({7, 2, -1, 14, -4, 4, 0, 0, 0, -3.5})));
  EXPECT_TRUE(quantized_values(row({127, 63.4, -0.6}), 8, 0).equal(row({127, 63, -1})));
}

/// 1/7 lies between the fp16 numbers 1170/8192 and 1171/8192.
TEST(QuantizedValues, HaveScalesThatAreRoundedUpToFp16) {
  EXPECT_TRUE(quantized_values(row({1, -0.5}), 4, 0).equal(row({7 * 1171.0 / 8192, -3 * 1171.0 / 8192})));
}

TEST(QuantizedValues, KeepTheDtype) {
  EXPECT_EQ(quantized_values(at::zeros({2, 3}, at::kBFloat16), 4, 2).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace shardwise::doctor::quantization_formula_test
