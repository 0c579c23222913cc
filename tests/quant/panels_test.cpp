// Packing of quantized rows into panels.
#include "shardwise/quant/panels.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "shardwise/kernels/panel_values_isa.h"
#include "tests/quant/support.h"
#include "tests/support/error_text.h"
#include "tests/support/instruction_set.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::panels_test {
namespace {

using quant::Matrix;
using quant::Panels;

TEST(Panels, HaveTheValuesOfTheMatrix) {
  for (const int64_t width : {1, 7, 64, 200, 1376}) {
    for (const QuantizedKind& kind : kinds_of(width)) {
      for (const int64_t rows : {1, 63, 64, 130}) {
        const Matrix m = random_matrix(kind, rows, /*seed=*/3);
        const Panels panels = packed(m);
        for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
          EXPECT_TRUE(same_bits(dequantized(panels, dtype), values_of(m).to(dtype)))
              << kind.name << ", width " << width << ", " << rows << " rows, " << dtype;
      }
    }
  }
}

TEST(Panels, PackBlocksOfRowsLikeTheWhole) {
  const QuantizedKind kind = kinds_of(75)[8];
  const Matrix m = random_matrix(kind, 150, /*seed=*/4);
  Panels panels = Panels::of(kind.format, 150, kind.in_features, kind.columns);
  allocate_(panels);
  for (int64_t begin = 0; begin < 150; begin += 40) {
    Matrix block = m;
    const int64_t count = std::min<int64_t>(40, 150 - begin);
    for (at::Tensor* tensor : {&block.qweight, &block.scales, &block.zero_points})
      *tensor = tensor->narrow(0, begin, count).contiguous();
    pack_rows_(panels, begin, block);
  }
  EXPECT_TRUE(same_bits(panels.data, packed(m).data));
}

// 0.5 bytes for a value, 2 for a scale; 64 rows and full lines.
TEST(Panels, TakeTheBytesOfTheirFormat) {
  const auto bytes = [](const quant::Format& format, int64_t rows, int64_t columns) {
    return Panels::of(format, rows, columns, {0, columns}).bytes();
  };
  EXPECT_EQ(bytes({4, 32}, 128, 4096), 128 * (4096 / 2 + 4096 / 32 * 2));
  EXPECT_EQ(bytes({4, 128, quant::Grouping::in_order, true}, 128, 4096), 128 * (4096 / 2 + 4096 / 128 * 3));
  EXPECT_EQ(bytes({8, 0}, 128, 4096), 128 * (4096 + 2));
  EXPECT_EQ(bytes({8, 0}, 1, 5), 64 * (8 + 2) + 8 * 4) << "padded to 64 rows and 8 columns";
}

TEST(Panels, DequantizeARangeOfRows) {
  const Matrix m = random_matrix(kinds_of(75)[5], 70, /*seed=*/6);
  const Panels panels = packed(m);
  at::Tensor w = at::full({5, 75}, 7, at::kFloat);
  dequantize_out(w, panels, {61, 66});
  EXPECT_TRUE(same_bits(w, values_of(m).narrow(0, 61, 5)));
  EXPECT_PRED2(test::contains, test::error_text([&] {
                 dequantize_out(w, panels, {0, 2});
               }),
               "dequantize: w must be");
}

class PanelValuesLoops : public EveryIsa {};
SHARDWISE_EVERY_ISA(PanelValuesLoops);

TEST_P(PanelValuesLoops, AreBitwiseExact) {
  for (const QuantizedKind& kind : {kinds_of(200)[2], kinds_of(200)[8]}) {
    const Matrix m = random_matrix(kind, 64, /*seed=*/7);
    const Panels panels = packed(m);
    at::Tensor w = at::full({1, 200}, 7, at::kFloat);
    const auto loops = kernels::panel_values_loops<float>(GetParam());
    loops.dequantize(w.mutable_data_ptr<float>(), panels.data.const_data_ptr<uint8_t>(), /*output=*/63,
                     panels.layout.shape());
    EXPECT_TRUE(same_bits(w, values_of(m).narrow(0, 63, 1))) << kind.name;
  }
}

}  // namespace
}  // namespace shardwise::testing::panels_test
