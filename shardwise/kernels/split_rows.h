// Rows rounded to integers for products with quantized weights.
//
// For each run of columns of a panel, x ≈ level · scale. The loops that multiply say how levels are stored:
// row after row, or in AMX's tiles of 16 rows by 64 levels.
#pragma once
#include "shardwise/kernels/panel_shape.h"

namespace shardwise::kernels {

/// The rows and columns of a tile of levels, each a byte.
inline constexpr int64_t kLevelTileRows = 16, kLevelTileColumns = 64;
inline constexpr int64_t kLevelTileBytes = kLevelTileRows * kLevelTileColumns;

struct SplitRows {
  int8_t* levels;       // [rows, row_bytes]
  float* scales;        // [rows, runs]
  int32_t* sums;        // [rows, runs, sum_count]: of a run's levels
  int64_t level_bytes;  // of an element
  int64_t sum_count;    // of a run
  int64_t columns;      // of a row, with padding at its end; in tiles, that of every run to full tiles
  int64_t runs;
  bool is_tiled = false;

  /// Returns the bytes of one row's levels.
  int64_t row_bytes() const { return level_bytes * columns; }
  /// Returns the rows from `row` on, a multiple of 16 in tiles.
  SplitRows from(int64_t row) const {
    SplitRows rest = *this;
    rest.levels += row * row_bytes();
    rest.scales += row * runs;
    rest.sums += row * runs * sum_count;
    return rest;
  }
};

}  // namespace shardwise::kernels
