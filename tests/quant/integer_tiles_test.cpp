// AMX's tiles of int8 give the bits of VNNI's dot products, so that products may choose by speed.
#include <gtest/gtest.h>

#include <vector>

#include "shardwise/base/isa.h"
#include "shardwise/kernels/panel_rows_int8_amx.h"
#include "shardwise/kernels/panel_rows_vnni.h"
#include "tests/quant/support.h"
#include "tests/support/tensors.h"

namespace shardwise::testing::integer_tiles_test {
namespace {

using base::Bf16;
using kernels::kPanelOutputs;
using kernels::SplitRows;
using quant::Panels;

/// Rows of x, rounded to one or two int8 parts.
struct Rounded {
  std::vector<int8_t> levels;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  SplitRows rows{};

  Rounded(const at::Tensor& x, const Panels& w, int64_t parts, bool is_tiled) {
    const kernels::PanelShape shape = w.layout.shape();
    const int64_t m = x.size(0), padded = (m + 15) / 16 * 16;
    const int64_t columns = is_tiled ? kernels::amx::level_columns(shape) : w.layout.columns();
    levels.assign(padded * parts * columns, 77);  // padding that is not zeroed shows
    scales.resize(padded * shape.run_count);
    sums.resize(padded * shape.run_count * parts);
    rows = {levels.data(), scales.data(), sums.data(), parts, parts, columns, shape.run_count, is_tiled};
    kernels::avx512_vnni::split(rows, static_cast<const Bf16*>(x.const_data_ptr()), x.size(1), m, shape);
  }
};

const uint8_t* panel_of(const Panels& w, int64_t panel) {
  return static_cast<const uint8_t*>(w.data.const_data_ptr()) + panel * w.layout.panel_bytes();
}

using Sums = std::vector<float>;

Sums by_vnni(const at::Tensor& x, const Panels& w, int64_t parts, int64_t panel) {
  const Rounded rounded(x, w, parts, /*is_tiled=*/false);
  Sums sums(x.size(0) * kPanelOutputs);
  for (int64_t row = 0; row < x.size(0); ++row)
    kernels::avx512_vnni::multiply(sums.data() + row * kPanelOutputs, rounded.rows.from(row), /*rows=*/1,
                                   panel_of(w, panel), w.layout.shape());
  return sums;
}

Sums by_tiles(const at::Tensor& x, const Panels& w, int64_t parts, int64_t panel) {
  const Rounded rounded(x, w, parts, /*is_tiled=*/true);
  Sums sums(x.size(0) * kPanelOutputs);
  kernels::amx::multiply_levels(sums.data(), rounded.rows, x.size(0), panel_of(w, panel), w.layout.shape());
  return sums;
}

/// Returns rows in the order of the panels' columns, zero in padding.
at::Tensor random_rows(const Panels& w, int64_t rows) {
  at::Tensor x = random_tensor({rows, w.layout.columns()}, /*seed=*/3, at::kBFloat16);
  if (!w.column_order.defined()) return x;
  return x.mul(w.column_order.lt(w.width()).to(at::kBFloat16)).contiguous();
}

class IntegerTiles : public ::testing::TestWithParam<int64_t> {};

TEST_P(IntegerTiles, HaveTheBitsOfVnni) {
  if (base::processor_isa() < base::Isa::amx) GTEST_SKIP() << "the processor lacks AMX";
  const int64_t width = GetParam();
  for (const QuantizedKind& kind : kinds_of(width)) {
    const Panels panels = packed(random_matrix(kind, /*rows=*/70, /*seed=*/1));
    for (const int64_t rows : {1, 2, 3, 5, 8, 9, 15, 16, 17, 31, 33, 64}) {
      const at::Tensor x = random_rows(panels, rows);
      for (const int64_t parts : {1, 2}) {
        for (const int64_t panel : {0, 1})
          EXPECT_EQ(by_tiles(x, panels, parts, panel), by_vnni(x, panels, parts, panel))
              << kind.name << ", " << rows << " rows, " << parts << " parts, panel " << panel;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Widths, IntegerTiles, ::testing::Values(1, 7, 64, 200, 1376, 4096));

}  // namespace
}  // namespace shardwise::testing::integer_tiles_test
