#include "shardwise/quant/bf16_product.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shardwise/base/isa.h"
#include "shardwise/kernels/panel_pairs_bf16.h"
#include "shardwise/kernels/panel_rows_amx.h"
#include "shardwise/kernels/panel_rows_bf16.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"
#include "shardwise/quant/panel_products.h"

namespace shardwise::quant {

namespace amx = kernels::amx;
using at::Tensor;
using base::Bf16;
using base::Isa;
using kernels::elements;
using kernels::elements_;
using kernels::kPanelLineBytes;
using kernels::kPanelOutputs;
using kernels::PanelShape;

namespace {

/// Columns that are multiplied at once, so that their values stay in the second-level cache.
struct Part {
  base::Range columns;
  base::Range runs;  // of a quantized weight
};
using Parts = std::vector<Part>;

/// Returns how many bf16 columns are multiplied at once. Up to 64 rows: 64 KB, which stay in the second-level
/// cache while the next ones are prefetched. More rows read their sums less often with more columns.
int64_t dense_depth(int64_t rows) {
  return rows <= 64 ? 512 : 2048;
}

Parts dense_parts(int64_t columns, int64_t rows) {
  Parts parts;
  for (int64_t begin = 0; begin < columns; begin += dense_depth(rows))
    parts.push_back({{begin, std::min(begin + dense_depth(rows), columns)}, {}});
  return parts;
}

/// Columns that are dequantized at once: 128 KB of bf16, for the second-level cache.
constexpr int64_t kQuantizedDepth = 1024;

/// Each part is of whole runs.
Parts quantized_parts(const PanelShape& shape) {
  Parts parts;
  for (int64_t run = 0, column = 0; run < shape.run_count; ++run) {
    const int64_t columns = shape.runs[run].lines * shape.columns_per_line();
    if (parts.empty() || parts.back().columns.size() + columns > kQuantizedDepth)
      parts.push_back({{column, column}, {run, run}});
    column += columns;
    parts.back().columns.end = column;
    parts.back().runs.end = run + 1;
  }
  return parts;
}

/// Rows of x in the form that the loops read.
class Bf16Rows {
 public:
  Bf16Rows(const Tensor& x, const Panels& w, const Parts& parts)
      : rows_(in_panel_order(x, w, at::kBFloat16)), is_tiled_(base::best_isa() >= Isa::amx) {
    if (is_tiled_) pack_tiles(parts);
  }

  /// Returns the number of rows of sums that the loops write.
  int64_t sum_rows() const {
    return is_tiled_ ? amx::tiles_of_rows(rows_.size(0)) * amx::kTileRows : rows_.size(0);
  }

  /// Adds the products of the columns of part `i` with `lines` to `sums` [sum_rows, 64].
  void add_product(float* sums, const uint8_t* lines, const Parts& parts, int64_t i,
                   bool is_in_memory) const {
    const auto [begin, end] = parts[i].columns;
    const int64_t line_count = (end - begin) / 2;
    if (is_tiled_) {
      const Bf16* first = elements<Bf16>(tiles_) + first_tile_[i] * amx::kTileBytes / 2;
      return amx::add_lines(sums, {first, tiles_.size(0), tiles_.size(1)}, lines, line_count, is_in_memory);
    }
    kernels::avx512_bf16::add_lines(sums, elements<Bf16>(rows_) + begin, rows_.size(1), rows_.size(0), lines,
                                    line_count, is_in_memory);
  }

 private:
  /// Every part begins a tile.
  void pack_tiles(const Parts& parts) {
    int64_t columns = 0;
    for (const Part& part : parts) {
      first_tile_.push_back(columns);
      columns += amx::tiles_of_columns(part.columns.size());
    }
    const int64_t m = rows_.size(0), stride = rows_.size(1);
    tiles_ = at::empty({amx::tiles_of_rows(m), columns, amx::kTileBytes / 2}, at::kBFloat16);
    kernels::for_ranges(tiles_.size(0), tiles_.stride(0), [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t row = block * amx::kTileRows, count = std::min(amx::kTileRows, m - row);
        for (size_t i = 0; i < parts.size(); ++i) {
          amx::pack_rows(elements_<Bf16>(tiles_) + (block * columns + first_tile_[i]) * amx::kTileBytes / 2,
                         elements<Bf16>(rows_) + row * stride + parts[i].columns.begin, stride, count,
                         parts[i].columns.size());
        }
      }
    });
  }

  Tensor rows_;  // [m, columns]
  bool is_tiled_;
  Tensor tiles_;                     // [blocks of 16 rows, tiles of columns, 512]
  std::vector<int64_t> first_tile_;  // of each part
};

void add_dense_panel(float* sums, const Bf16Rows& rows, const Parts& parts, const uint8_t* panel) {
  for (int64_t i = 0; i < std::ssize(parts); ++i)
    rows.add_product(sums, panel + parts[i].columns.begin / 2 * kPanelLineBytes, parts, i,
                     /*is_in_memory=*/true);
}

/// Dequantizes one panel to bf16 in `values` [kQuantizedDepth / 2, 64], part by part, and adds its product.
void add_quantized_panel(float* sums, const Bf16Rows& rows, const Parts& parts, const uint8_t* panel,
                         const PanelShape& shape, const Tensor& values) {
  for (int64_t i = 0; i < std::ssize(parts); ++i) {
    const base::Range& runs = parts[i].runs;
    kernels::avx512_bf16::dequantize_pairs(elements_<uint32_t>(values), panel, runs.begin, runs.size(),
                                           shape);
    rows.add_product(sums, elements<uint8_t>(values), parts, i, /*is_in_memory=*/false);
  }
}

}  // namespace

bool has_bf16_loops() {
  return base::best_isa() >= Isa::avx512_bf16;
}

void bf16_product_out(const Tensor& y, const Tensor& x, const Panels& w) {
  const PanelShape shape = w.layout.shape();
  const bool is_quantized = w.format.is_quantized();
  const Parts parts = is_quantized ? quantized_parts(shape) : dense_parts(w.layout.columns(), x.size(0));
  const Bf16Rows rows(x, w, parts);
  for_panel_ranges(w, [&](int64_t begin, int64_t end) {
    const Tensor sums = at::empty({rows.sum_rows(), kPanelOutputs}, at::kFloat);
    const Tensor values = is_quantized ? at::empty({kQuantizedDepth / 2, kPanelOutputs}, at::kInt) : Tensor();
    for (int64_t panel = begin; panel < end; ++panel) {
      auto* sum = elements_<float>(sums);
      std::fill_n(sum, sums.numel(), 0.0F);
      if (is_quantized) {
        add_quantized_panel(sum, rows, parts, panel_of(w, panel), shape, values);
      } else {
        add_dense_panel(sum, rows, parts, panel_of(w, panel));
      }
      store_panel(y, {0, y.size(0)}, sum, panel);
    }
  });
}

}  // namespace shardwise::quant
