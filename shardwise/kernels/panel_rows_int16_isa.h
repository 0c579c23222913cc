// Products of rows with a panel of a quantized weight by sums of two int16 products each, which every x86
// has.
//
// A row's elements are rounded, for each run of columns, to integers of 16 bits: the error of an element is
// at most 2^-16 of the run's largest magnitude, below the rounding of bf16. A row's levels are int16 in
// pairs, as a line's bytes hold them in 16-bit halves:
//
//   int8   (0, 2), (1, 3) of a line's four columns
//   int4   (0, 2), (1, 3), (4, 6), (5, 7) of a line's eight columns
//
// level_bytes of SplitRows is 2, sum_count is 1.
#pragma once
#include "shardwise/kernels/isa.h"
#include "shardwise/kernels/split_rows.h"

namespace shardwise::kernels {

/// The largest number of rows that are multiplied at once.
inline constexpr int64_t kMaxInt16Rows = 4;

template <class T>
struct PanelRowsInt16Loops {
  /// Rounds rows in the panel's order of columns, zero in padding. Runs that contain NaN or infinity have the
  /// scale NaN, those whose magnitudes are below 2^-110 have the scale 0.
  void (*split)(const SplitRows& to, const T* x, int64_t x_stride, int64_t rows, const PanelShape& shape);
  /// y[i · 64 + o] = Σ_k x[i, k] · value(k, o) for i < rows. Sums in an order that depends only on the shape.
  void (*multiply)(float* y, const SplitRows& x, int64_t rows, const uint8_t* panel, const PanelShape& shape);
};
SHARDWISE_PER_ISA(PanelRowsInt16Loops, panel_rows_int16_loops)

}  // namespace shardwise::kernels
