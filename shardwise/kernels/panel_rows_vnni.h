// Products of rows with a panel of a quantized weight by the processor's int8 dot products (AVX-512 VNNI).
//
// A row's elements are rounded, for each run of columns, to integers of 16 bits, x ≈ (256·high + low)·scale:
// both parts are int8, so that two dot products give the exact sum of integers. The error of an element is at
// most 2^-16 of the run's largest magnitude, below the rounding of bf16, whose elements have 8 bits. With one
// part, x ≈ high·scale, the error is at most 1/254 of that magnitude.
#pragma once
#include "shardwise/base/element.h"
#include "shardwise/kernels/split_rows.h"

namespace shardwise::kernels {

namespace avx512_vnni {

// A row's levels are [lines, part_count, columns per line] int8: the high and the low parts of a line's
// columns. A run has a sum for each part: level_bytes and sum_count of SplitRows are both part_count, 1 or 2.

/// The largest number of rows of `multiply`.
inline constexpr int64_t kMaxRows = 8;

/// Splits rows of bf16, fp16 or fp32 in the panel's order of columns, zero in padding; into tiles too. Runs
/// that contain NaN or infinity have the scale NaN, those whose magnitudes are below 2^-110 have the scale 0.
template <class T>
void split(const SplitRows& to, const T* x, int64_t x_stride, int64_t rows, const PanelShape& shape);

/// y[i · 64 + o] = Σ_k x[i, k] · value(k, o) for i < rows. Sums in an order that depends only on the shape.
void multiply(float* y, const SplitRows& x, int64_t rows, const uint8_t* panel, const PanelShape& shape);

}  // namespace avx512_vnni
}  // namespace shardwise::kernels
