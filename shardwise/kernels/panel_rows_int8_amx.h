// Products of rows with a panel of a quantized weight by AMX's tiles of int8: the sums of integers, and so
// the bits of the result, are those of panel_rows_vnni.h.
//
// Levels are in tiles (split_rows.h): for every 16 rows and every 64 columns of a run, a tile of the high
// parts, then one of the low parts if there are two.
#pragma once
#include "shardwise/kernels/split_rows.h"

namespace shardwise::kernels::amx {

/// The largest number of rows of `multiply_levels`.
inline constexpr int64_t kMaxLevelRows = 64;

/// Returns the columns of a row with those that pad every run to full tiles: `columns` of SplitRows.
int64_t level_columns(const PanelShape& shape);

/// y[i · 64 + o] = Σ_k x[i, k] · value(k, o) for i < rows. Sums in an order that depends only on the shape.
void multiply_levels(float* y, const SplitRows& x, int64_t rows, const uint8_t* panel,
                     const PanelShape& shape);

}  // namespace shardwise::kernels::amx
