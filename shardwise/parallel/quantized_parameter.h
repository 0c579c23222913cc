// Quantizes rows of a parameter's local shard. If ranks hold columns of the same rows, the scales are those
// of the full rows, so that the quantized values are those of one rank.
#pragma once
#include "shardwise/parallel/parameter.h"

namespace shardwise::parallel {

/// Returns the absolute maximum of each of this rank's groups, over all ranks if they share rows.
/// Communication: an all_reduce of [n, groups of full rows] fp32 if ranks share rows, else none. Shapes: `w`
/// [n, width] fp32, contiguous → [n, groups]. NaN becomes infinity if ranks share rows.
at::Tensor group_maxima(const Parameter& weight, const at::Tensor& w, const comm::Group& group);

/// Quantizes `w` as the rows [begin, begin + n) of the shard. Shapes: `w` [n, width] fp32, `maxima`
/// [n, groups]. Errors: c10::ValueError naming the weight if a maximum is NaN or too large for an fp16 scale.
void quantize_rows_(const Parameter& weight, int64_t begin, const at::Tensor& w, const at::Tensor& maxima);

}  // namespace shardwise::parallel
