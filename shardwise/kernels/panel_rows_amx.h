// Products of rows with lines of bf16 (panel_shape.h) by AMX's tiles.
//
// A tile has 16 rows of 64 bytes. One instruction multiplies 16 rows by 32 columns of x with 32 columns by 16
// outputs of the weight, whose lines already have the order that it needs, and accumulates in fp32; it treats
// denormal inputs and results as zero.
#pragma once
#include "shardwise/base/element.h"
#include "shardwise/kernels/panel_shape.h"

namespace shardwise::kernels::amx {

inline constexpr int64_t kTileRows = 16, kTileColumns = 32, kTileBytes = 1024;

/// Returns how many tiles `rows` rows or `columns` columns take.
constexpr int64_t tiles_of_rows(int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}
constexpr int64_t tiles_of_columns(int64_t columns) {
  return (columns + kTileColumns - 1) / kTileColumns;
}

/// Copies up to 16 rows [rows, columns] to tiles [⌈columns / 32⌉, 16, 32], with zeros in columns of padding.
/// Read in place, rows at a distance of a power of two would share few lines of the cache.
void pack_rows(base::Bf16* tiles, const base::Bf16* x, int64_t x_stride, int64_t rows, int64_t columns);

/// Packed rows from a column on, for `add_lines`.
struct TiledRows {
  const base::Bf16* tiles;
  int64_t rows;
  int64_t row_tile_columns;  // tiles from a block to the next
};

/// y[row · 64 + o] += Σ_j x[row, j] · w[o][j] for the 2·lines columns of `lines` lines and all rows; writes
/// more than `rows` if tiles hold more. Sums in an order that depends on the lines alone. Prefetches as many
/// lines from `next` on, unless it is null.
void add_lines(float* y, const TiledRows& x, const uint8_t* line, int64_t lines, const uint8_t* next);

}  // namespace shardwise::kernels::amx
