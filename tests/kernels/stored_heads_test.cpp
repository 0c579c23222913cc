// Rows of a KV cache: copies, or int8 within half a step of the row's scale.
#include "shardwise/kernels/stored_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/support.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::kernels::stored_heads_test {
namespace {

using at::Tensor;
using testing::random_tensor;
using testing::same_bits;

constexpr int64_t kHeads = 3, kCapacity = 40;
const std::vector<at::ScalarType> kDtypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

StoredHeads int8_heads(int64_t d) {
  return {at::zeros({kHeads, kCapacity, d}, at::kChar), at::zeros({kHeads, kCapacity}, at::kFloat)};
}

/// Rows whose magnitudes differ by powers of ten.
Tensor rows_of_all_sizes(int64_t rows, int64_t d, at::ScalarType dtype) {
  const Tensor values = random_tensor({kHeads, rows, d}, 1, at::kDouble);
  for (int64_t row = 0; row < rows; ++row) values.select(1, row).mul_(std::pow(10, row % 7 - 4));
  return values.to(dtype);
}

TEST(StoredHeads, KeepTheBitsInTheModelsDtype) {
  for (const at::ScalarType dtype : kDtypes) {
    const StoredHeads heads{at::zeros({kHeads, kCapacity, 20}, dtype), {}};
    const Tensor values = random_tensor({kHeads, 9, 20}, 1, dtype);
    store_rows_(heads, 5, NewRows::of(values));
    const Tensor stored = stored_rows(heads, 14, dtype);
    EXPECT_TRUE(same_bits(stored.narrow(1, 5, 9).contiguous(), values));
    EXPECT_EQ(stored.narrow(1, 0, 5).abs().max().item<double>(), 0);
    EXPECT_EQ(heads.rows.narrow(1, 14, kCapacity - 14).abs().max().item<double>(), 0);
  }
}

TEST(StoredHeads, RoundToHalfAStepInInt8) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t d : {1, 7, 20, 64, 128}) {
      const StoredHeads heads = int8_heads(d);
      // Of tokens before heads, as attention's values are.
      const Tensor values = rows_of_all_sizes(14, d, dtype).transpose(0, 1).contiguous().transpose(0, 1);
      store_rows_(heads, 5, NewRows::of(values));
      const Tensor wide = values.to(at::kDouble), step = wide.abs().amax(-1) / 127;
      const Tensor read = stored_rows(heads, 19, at::kDouble).narrow(1, 5, 14);
      EXPECT_LE(((read - wide).abs().amax(-1) / step).max().item<double>(), 0.5 + 1e-4)
          << dtype << ", d " << d;
      EXPECT_LE((heads.scales.narrow(1, 5, 14) / step - 1).abs().max().item<double>(), 1e-6);
      EXPECT_EQ(heads.rows.narrow(1, 0, 5).abs().max().item<double>(), 0);
      EXPECT_EQ(heads.rows.narrow(1, 19, kCapacity - 19).abs().max().item<double>(), 0);
    }
  }
}

TEST(StoredHeads, ReadInt8AsTheProductOfRowAndScale) {
  const StoredHeads heads = int8_heads(20);
  store_rows_(heads, 0, NewRows::of(rows_of_all_sizes(kCapacity, 20, at::kFloat)));
  const Tensor product = heads.rows.to(at::kFloat) * heads.scales.unsqueeze(-1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    EXPECT_TRUE(same_bits(stored_rows(heads, kCapacity, dtype), product.to(dtype))) << dtype;
}

TEST(StoredHeads, KeepZerosAndShowNaNAndInf) {
  for (const at::ScalarType dtype : kDtypes) {
    const StoredHeads heads = int8_heads(20);
    const Tensor values = random_tensor({kHeads, 4, 20}, 1, dtype);
    values[0][0].zero_();
    values[0][1][3] = std::nan("");
    values[0][2][19] = -std::numeric_limits<double>::infinity();
    store_rows_(heads, 0, NewRows::of(values));
    const Tensor read = stored_rows(heads, 4, dtype);
    EXPECT_EQ(read[0][0].abs().max().item<double>(), 0);
    EXPECT_TRUE(read[0][1].isnan().all().item<bool>());
    EXPECT_TRUE(read[0][2].isnan().all().item<bool>());
    EXPECT_FALSE(read[0][3].isnan().any().item<bool>());
    EXPECT_FALSE(read[1].isnan().any().item<bool>());
  }
}

TEST(StoredHeads, DoNotDependOnThreads) {
  const Tensor values = rows_of_all_sizes(kCapacity, 2048, at::kBFloat16);
  const auto read = [&](int threads) {
    const Threads some(threads);
    const StoredHeads heads = int8_heads(2048);
    store_rows_(heads, 0, NewRows::of(values));
    return stored_rows(heads, kCapacity, at::kBFloat16);
  };
  EXPECT_TRUE(same_bits(read(1), read(2)));
}

}  // namespace
}  // namespace shardwise::kernels::stored_heads_test
