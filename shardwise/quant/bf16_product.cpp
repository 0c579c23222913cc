#include "shardwise/quant/bf16_product.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shardwise/base/isa.h"
#include "shardwise/kernels/panel_lines_bf16.h"
#include "shardwise/kernels/panel_pairs_bf16.h"
#include "shardwise/kernels/panel_rows_amx.h"
#include "shardwise/kernels/panel_rows_bf16.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"
#include "shardwise/quant/mapped_rows.h"
#include "shardwise/quant/panel_products.h"

namespace shardwise::quant {

namespace amx = kernels::amx;
using at::Tensor;
using base::Bf16;
using base::Isa;
using base::Range;
using kernels::elements;
using kernels::elements_;
using kernels::kPanelLineBytes;
using kernels::kPanelOutputs;
using kernels::PanelRun;
using kernels::PanelShape;
using kernels::avx512_bf16::ReadNext;

namespace {

/// Columns that are multiplied at once, so that their values stay in the second-level cache.
struct Part {
  Range columns;
  Range runs;  // of a quantized weight
};
using Parts = std::vector<Part>;

/// Returns how many bf16 columns are multiplied at once. Up to 64 rows: 64 KB, which stay in the second-level
/// cache while the next ones are prefetched. More rows read their sums less often with more columns, as long
/// as their tiles stay in that cache too.
int64_t dense_depth(int64_t rows) {
  if (rows <= 64) return 512;
  return base::best_isa() >= Isa::amx && rows > 256 ? 1024 : 2048;
}

/// Returns how many columns of mapped rows are packed and multiplied at once: for few rows 16 KB, which stay
/// in the first-level cache.
int64_t mapped_depth(int64_t rows) {
  return rows <= 64 ? 128 : 512;
}

Parts dense_parts(int64_t columns, int64_t depth) {
  Parts parts;
  for (int64_t begin = 0; begin < columns; begin += depth)
    parts.push_back({{begin, std::min(begin + depth, columns)}, {}});
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

Parts parts_of(const Panels& w, int64_t rows) {
  if (w.format.is_quantized()) return quantized_parts(w.layout.shape());
  return dense_parts(w.layout.columns(), w.mapped_rows ? mapped_depth(rows) : dense_depth(rows));
}

/// Rows of x in the form that the loops read.
class Bf16Rows {
 public:
  Bf16Rows(const Tensor& x, const Panels& w, const Parts& parts)
      : rows_(in_panel_order(x, w, at::kBFloat16)), is_tiled_(base::best_isa() >= Isa::amx) {
    if (is_tiled_) pack_tiles(parts);
  }

  /// Returns the number of rows of sums that the loops write for `rows` rows.
  int64_t sum_rows(const Range& rows) const {
    return is_tiled_ ? amx::tiles_of_rows(rows.size()) * amx::kTileRows : rows.size();
  }

  /// Adds the products of `rows` and the columns of part `i` with `lines` to `sums` [sum_rows, 64]. `next`:
  /// what is read from memory after that.
  void add_product(float* sums, const Range& rows, const uint8_t* lines, const Parts& parts, int64_t i,
                   const ReadNext& next) const {
    const auto [begin, end] = parts[i].columns;
    const int64_t line_count = (end - begin) / 2;
    if (is_tiled_) {
      const int64_t block = rows.begin / amx::kTileRows, columns = tiles_.size(1);
      const Bf16* first = elements<Bf16>(tiles_) + (block * columns + first_tile_[i]) * kTile;
      const bool is_dense =
          next.bytes == line_count * kPanelLineBytes;  // tiles prefetch as many as they read
      return amx::add_lines(sums, {first, rows.size(), columns}, lines, line_count,
                            is_dense ? next.begin : nullptr);
    }
    const int64_t stride = rows_.size(1);
    kernels::avx512_bf16::add_lines(sums, elements<Bf16>(rows_) + rows.begin * stride + begin, stride,
                                    rows.size(), lines, line_count, next);
  }

 private:
  static constexpr int64_t kTile = amx::kTileBytes / int64_t{sizeof(Bf16)};

  /// Every part begins a tile.
  void pack_tiles(const Parts& parts) {
    int64_t columns = 0;
    for (const Part& part : parts) {
      first_tile_.push_back(columns);
      columns += amx::tiles_of_columns(part.columns.size());
    }
    const int64_t m = rows_.size(0), stride = rows_.size(1);
    tiles_ = kernels::empty({amx::tiles_of_rows(m), columns, kTile}, at::kBFloat16);
    kernels::for_ranges(tiles_.size(0), columns * kTile, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t row = block * amx::kTileRows, count = std::min(amx::kTileRows, m - row);
        for (size_t i = 0; i < parts.size(); ++i) {
          amx::pack_rows(elements_<Bf16>(tiles_) + (block * columns + first_tile_[i]) * kTile,
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

/// Rows and panels that are multiplied together, so that what they share stays in the second-level cache: a
/// part's columns of the rows, and the sums of all panels.
struct Blocks {
  int64_t rows, panels;
};

Blocks blocks_of(int64_t rows) {
  constexpr int64_t kMostRows = 512;
  if (base::best_isa() < Isa::amx || rows <= 256) return {rows, 1};
  const int64_t count = (rows + kMostRows - 1) / kMostRows, tiles = amx::tiles_of_rows(rows);
  return {(tiles + count - 1) / count * amx::kTileRows, 8};
}

/// One thread's products: what all its blocks share.
class PanelProducts {
 public:
  PanelProducts(const Bf16Rows& rows, const Parts& parts, const Panels& w, const Blocks& blocks)
      : rows_(rows),
        parts_(parts),
        w_(w),
        sums_(kernels::empty({blocks.panels, rows.sum_rows({0, blocks.rows}), kPanelOutputs}, at::kFloat)) {
    if (w.format.is_quantized() || w.mapped_rows)
      values_ = kernels::empty({kQuantizedDepth / 2, kPanelOutputs}, at::kInt);
  }

  /// Computes the products of `rows` with `panels`, part by part.
  void store(const Tensor& y, const Range& rows, const Range& panels) const {
    std::fill_n(elements_<float>(sums_), sums_.numel(), 0.0F);
    for (int64_t i = 0; i < std::ssize(parts_); ++i) {
      for (int64_t panel = panels.begin; panel < panels.end; ++panel)
        add(sums_of(panel, panels), rows, panel, i, /*follows=*/panel + 1 < panels.end);
    }
    for (int64_t panel = panels.begin; panel < panels.end; ++panel)
      store_panel(y, rows, sums_of(panel, panels), panel);
  }

 private:
  float* sums_of(int64_t panel, const Range& panels) const {
    return elements_<float>(sums_) + (panel - panels.begin) * sums_.stride(0);
  }

  const uint8_t* dense_lines(int64_t panel, int64_t part) const {
    return panel_of(w_, panel) + parts_[part].columns.begin / 2 * kPanelLineBytes;
  }

  /// Writes a part of a panel that has no lines of bf16 to `values_`.
  void unpack(int64_t panel, int64_t part) const {
    namespace bf16 = kernels::avx512_bf16;
    const auto& [columns, runs] = parts_[part];
    if (w_.mapped_rows) {
      const int64_t row = panel * kPanelOutputs, count = std::min(kPanelOutputs, w_.rows - row);
      return bf16::pack_lines(elements_<uint8_t>(values_), w_.mapped_rows->rows.data() + row, count,
                              columns.begin, columns.end);
    }
    bf16::dequantize_pairs(elements_<uint32_t>(values_), panel_of(w_, panel), runs.begin, runs.size(),
                           w_.layout.shape());
  }

  /// Returns the bytes that are read after a part of a panel: of a quantized weight as many again, of a dense
  /// one the same part of the next panel, if it `follows`, or the next part.
  ReadNext after(int64_t panel, int64_t part, bool follows) const {
    if (w_.mapped_rows) return {nullptr, 0};
    if (w_.format.is_quantized()) {
      const PanelShape shape = w_.layout.shape();
      const Range& runs = parts_[part].runs;
      const PanelRun &first = shape.runs[runs.begin], &last = shape.runs[runs.end - 1];
      const int64_t end = last.begin + last.lines * kPanelLineBytes;
      return {panel_of(w_, panel) + end, end - first.begin};
    }
    const int64_t bytes = parts_[part].columns.size() / 2 * kPanelLineBytes;
    return {follows ? dense_lines(panel + 1, part) : dense_lines(panel, part) + bytes, bytes};
  }

  /// Adds the product with a part of a panel.
  void add(float* sums, const Range& rows, int64_t panel, int64_t part, bool follows) const {
    if (values_.defined()) unpack(panel, part);
    const uint8_t* lines = values_.defined() ? elements<uint8_t>(values_) : dense_lines(panel, part);
    rows_.add_product(sums, rows, lines, parts_, part, after(panel, part, follows));
  }

  const Bf16Rows& rows_;
  const Parts& parts_;
  const Panels& w_;
  Tensor sums_;    // [panels, rows, 64]
  Tensor values_;  // of a weight that is quantized or mapped: [kQuantizedDepth / 2, 64] pairs
};

}  // namespace

void bf16_product_out(const Tensor& y, const Tensor& x, const Panels& w) {
  const int64_t m = x.size(0);
  const Parts parts = parts_of(w, m);
  const Bf16Rows rows(x, w, parts);
  const Blocks blocks = blocks_of(m);
  for_panel_ranges(w, [&](int64_t begin, int64_t end) {
    const PanelProducts products(rows, parts, w, blocks);
    for (int64_t row = 0; row < m; row += blocks.rows) {
      for (int64_t panel = begin; panel < end; panel += blocks.panels)
        products.store(y, {row, std::min(row + blocks.rows, m)},
                       {panel, std::min(panel + blocks.panels, end)});
    }
  });
}

}  // namespace shardwise::quant
