// Symmetric round-to-nearest quantization.
//
// A group's scale is its absolute maximum divided by the largest level, rounded up to fp16, which is how
// files store it. So quantizing while loading gives what `quantize` writes, and no value moves by more than
// half a scale.
#pragma once
#include "shardwise/quant/matrix.h"

namespace shardwise::quant {

/// Returns the absolute maximum of each group; NaN if the group contains NaN. If ranks share rows, the
/// maximum over the ranks gives the full group's. `columns` are the local columns of rows of `in_features`.
/// Shapes: `w` [rows, columns] fp32, contiguous → [rows, groups] fp32.
at::Tensor group_maxima(const at::Tensor& w, const Format& format, int64_t in_features,
                        const base::Range& columns);

/// Returns the largest magnitude whose scale is representable in fp16.
float max_magnitude(const Format& format);

/// Checks the maxima of the groups of weight `name`. Errors: c10::ValueError beginning with `name` if one is
/// NaN or too large for an fp16 scale.
void check_maxima(const at::Tensor& maxima, const Format& format, const std::string& name);

/// Quantizes `w` into the rows [begin, begin + n) of `matrix`. `maxima` are the absolute maxima of the full
/// groups; all zero points are symmetric_zero_point(). Shapes: `w` [n, width] fp32, `maxima` [n, groups].
void quantize_rows_(Matrix& matrix, int64_t begin, const at::Tensor& w, const at::Tensor& maxima);

}  // namespace shardwise::quant
