// From numbers to codes: symmetric, round to nearest.
//
// A group's scale is its largest magnitude over the largest step, rounded up to fp16, as the files keep it:
// codes made here are those that are read back, and no value is further than half a step from its code's.
#pragma once
#include "shardwise/quant/matrix.h"

namespace shardwise::quant {

/// The largest magnitude of each group. Shapes: `w` [rows, columns] fp32, contiguous, the columns `columns`
/// of rows of `in_features` → [rows, groups] fp32. Where ranks share rows the maximum of theirs is the whole
/// group's.
at::Tensor group_maxima(const at::Tensor& w, const Format& format, int64_t in_features,
                        const base::Range& columns);

/// The largest magnitude whose scale fp16 holds.
float most_magnitude(const Format& format);

/// Codes `w` [n, width] fp32 into the rows [begin, begin + n) of `matrix`, scales by `maxima` [n, groups] (of
/// the whole groups), zeros all symmetric_zero().
void quantize_rows_(Matrix& matrix, int64_t begin, const at::Tensor& w, const at::Tensor& maxima);

}  // namespace shardwise::quant
