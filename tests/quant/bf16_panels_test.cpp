// Weights packed in bf16: their values, and products with them against fp64. ctest runs the products once
// more for each lower instruction set (SHARDWISE_MAX_ISA), where they are unpacked before they are
// multiplied.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shardwise/base/isa.h"
#include "shardwise/quant/product.h"
#include "tests/quant/support.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::bf16_panels_test {
namespace {

using at::Tensor;
using quant::Panels;

Panels empty_panels(int64_t rows, int64_t width) {
  Panels panels = Panels::of({.bits = 16}, rows, width, {0, width});
  allocate_(panels);
  return panels;
}

Panels packed_bf16(const Tensor& w) {
  Panels panels = empty_panels(w.size(0), w.size(1));
  pack_bf16_rows_(panels, /*begin=*/0, w);
  return panels;
}

TEST(Bf16Panels, HaveTheValuesOfTheWeight) {
  for (const int64_t width : {1, 2, 7, 31, 64, 130, 1376}) {
    for (const int64_t rows : {1, 63, 64, 65, 200}) {
      const Tensor w = random_tensor({rows, width}, /*seed=*/1, at::kBFloat16);
      const Panels panels = packed_bf16(w);
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
        EXPECT_TRUE(same_bits(dequantized(panels, dtype), w.to(dtype))) << rows << " × " << width;
    }
  }
}

TEST(Bf16Panels, PackBlocksOfRowsLikeTheWhole) {
  const Tensor w = random_tensor({150, 75}, /*seed=*/2, at::kBFloat16);
  Panels panels = empty_panels(150, 75);
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 40}, {40, 1}, {41, 90}, {131, 19}})
    pack_bf16_rows_(panels, begin, w.narrow(0, begin, count));
  EXPECT_TRUE(same_bits(panels.data, packed_bf16(w).data));
}

// Two bytes for a value; 64 rows and full lines.
TEST(Bf16Panels, TakeTheBytesOfTheirFormat) {
  EXPECT_EQ(empty_panels(128, 4096).bytes(), 128 * 4096 * 2);
  EXPECT_EQ(empty_panels(65, 3).bytes(), 128 * 4 * 2 + 4 * 4) << "padded to 128 rows and 4 columns";
}

TEST(Bf16Panels, ArePackedForInferenceIfTheProcessorMultipliesThem) {
  const bool multiplies = base::best_isa() >= base::Isa::avx512_bf16;
  for (const int64_t rows : {64, 128, 57, 512 + 1, 2048})
    EXPECT_EQ(quant::inference_format(at::kBFloat16, rows, 8).has_value(), multiplies) << rows;
  for (const int64_t rows : {1, 56, 65, 448 + 1})
    EXPECT_FALSE(quant::inference_format(at::kBFloat16, rows, 8)) << rows;
  EXPECT_FALSE(quant::inference_format(at::kFloat, 64, 8));
  EXPECT_FALSE(quant::inference_format(at::kHalf, 64, 8));
  EXPECT_FALSE(quant::inference_format(at::kBFloat16, 64, 7));
}

Tensor product(const Tensor& x, const Panels& w) {
  Tensor y = at::full({x.size(0), w.rows}, 7, x.options());
  quant::product_out(y, x, w);
  return y;
}

class PackedProduct : public ::testing::TestWithParam<int64_t> {};

/// The bound: y's rounding, and that of a sum of `width` products in fp32, whose error grows like a random
/// walk.
TEST_P(PackedProduct, IsThatOfTheWeight) {
  const int64_t width = GetParam();
  for (const int64_t outputs : {1, 64, 130}) {
    const Tensor w = random_tensor({outputs, width}, /*seed=*/3, at::kBFloat16);
    const Panels panels = packed_bf16(w);
    const Tensor all = random_tensor({70, width}, /*seed=*/4, at::kBFloat16), wide = all.to(at::kDouble);
    const Tensor exact = wide.mm(w.to(at::kDouble).t()), sums = wide.abs().mm(w.to(at::kDouble).abs().t());
    const double u_sum = (std::sqrt(static_cast<double>(width)) + 8) * 0x1p-24;
    const Tensor bound = 0x1p-8 * exact.abs() + u_sum * sums + 1e-30;
    for (const int64_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 70}) {
      const Tensor y = product(all.narrow(0, 0, rows), panels);
      if (rows == 0) continue;
      const Tensor error = (y.to(at::kDouble) - exact.narrow(0, 0, rows)).abs();
      EXPECT_LE((error / bound.narrow(0, 0, rows)).amax().item<double>(), 1)
          << rows << " rows, " << outputs << " × " << width;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Widths, PackedProduct,
                         ::testing::Values(1, 2, 7, 64, 511, 512, 513, 1376, 4096, 11008));

TEST(PackedProductOfRows, AcceptsOtherDtypes) {
  const Tensor w = random_tensor({70, 33}, /*seed=*/5, at::kBFloat16);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Tensor x = random_tensor({3, 33}, /*seed=*/6, dtype);
    EXPECT_LT(relative_error(product(x, packed_bf16(w)), x.to(at::kDouble).mm(w.to(at::kDouble).t())), 1e-6);
  }
}

TEST(PackedProductOfRows, HasTheSameBitsForAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  const Panels panels = packed_bf16(random_tensor({300, 1376}, /*seed=*/7, at::kBFloat16));
  for (const int64_t rows : {1, 3, 8, 9, 70}) {
    const Tensor x = random_tensor({rows, 1376}, /*seed=*/8, at::kBFloat16);
    at::set_num_threads(1);
    const Tensor one = product(x, panels);
    at::set_num_threads(2);
    EXPECT_TRUE(same_bits(product(x, panels), one)) << rows;
    EXPECT_TRUE(same_bits(product(x, panels), one)) << rows << ", again";
  }
  at::set_num_threads(threads);
}

/// The order of a sum depends on the weight alone.
TEST(PackedProductOfRows, DoesNotDependOnTheOtherRows) {
  if (base::best_isa() < base::Isa::avx512_bf16) return;  // other products choose their order by rows
  // With AMX 9 panels are more than are multiplied together, and 1100 rows are three blocks.
  const Panels panels = packed_bf16(random_tensor({570, 1376}, /*seed=*/9, at::kBFloat16));
  const Tensor x = random_tensor({1100, 1376}, /*seed=*/10, at::kBFloat16), all = product(x, panels);
  for (const int64_t rows : {1, 5, 8, 13, 70, 300, 513})
    EXPECT_TRUE(same_bits(product(x.narrow(0, 0, rows), panels), all.narrow(0, 0, rows).contiguous()))
        << rows;
}

TEST(PackedProductOfRows, PropagatesNanAndInfinity) {
  const Panels panels = packed_bf16(random_tensor({70, 200}, /*seed=*/11, at::kBFloat16));
  for (const int64_t rows : {1, 5, 20}) {
    for (const double value : {NAN, INFINITY}) {
      Tensor x = random_tensor({rows, 200}, /*seed=*/12, at::kBFloat16);
      x[rows - 1][150] = value;
      const Tensor y = product(x, panels);
      EXPECT_FALSE(y[rows - 1].isfinite().any().item<bool>()) << value;
      EXPECT_TRUE(rows == 1 || y.narrow(0, 0, rows - 1).isfinite().all().item<bool>());
    }
  }
}

TEST(PackedEmbedding, LooksUpLocalIdsAndZeroesOthers) {
  const Tensor w = random_tensor({6, 41}, /*seed=*/13, at::kBFloat16);  // ids 10 to 15
  const Tensor ids = at::tensor({9, 10, 15, 16}, at::kLong).view({2, 2});
  Tensor y = at::full({2, 2, 41}, 7, at::kBFloat16);
  quant::embedding_out(y, ids, packed_bf16(w), /*begin=*/10);
  const Tensor zero = at::full({41}, 0, at::kBFloat16);
  EXPECT_TRUE(same_bits(y[0][0], zero) && same_bits(y[1][1], zero));
  EXPECT_TRUE(same_bits(y[0][1], w[0]) && same_bits(y[1][0], w[5]));
}

}  // namespace
}  // namespace shardwise::testing::bf16_panels_test
