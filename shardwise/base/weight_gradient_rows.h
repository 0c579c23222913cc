// How many rows a weight gradient adds at a time under sequence parallelism. plan/ counts the same.
#pragma once
#include <cstdint>
#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::base {

/// The rows of several ranks are multiplied together until there are this many. Each product reads and writes
/// the whole main gradient: that costs time for fewer rows; copying more of them costs memory
/// (docs/adr/0027).
inline constexpr int64_t kWeightGradientRows = 256;

/// Returns runs of consecutive ranks that cover all: the shortest of at least kWeightGradientRows rows each,
/// or a single run. Each index of `sequence` has `batch` rows.
std::vector<Range> weight_gradient_ranks(const Split& sequence, int64_t batch);

/// Returns the rows of a run of ranks, as indices of `sequence`.
Range indices_of(const Split& sequence, const Range& ranks);

/// Returns the most rows of a run.
int64_t largest_weight_gradient_rows(const Split& sequence, int64_t batch);

}  // namespace shardwise::base
