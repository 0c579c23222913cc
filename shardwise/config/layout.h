// The splits of a model: the heads, ffn columns and vocabulary rows of each rank.
#pragma once
#include <string>

#include "shardwise/base/split.h"
#include "shardwise/config/config.h"

namespace shardwise::config {

/// The splits that a model's shard rules use.
struct Layout {
  base::Split heads;     // of query heads
  base::Split kv_heads;  // of KV heads, which ranks may share
  base::Split ffn;       // of the features inside the MLP
  base::Split vocab;     // of vocabulary rows
};

/// Checks that each of `tp` ranks gets a query head. Errors: c10::ValueError beginning with `command`
/// otherwise.
void check_ranks(const std::string& command, const Config& config, int64_t tp);

/// Returns the splits over `tp` ranks. Errors: c10::ValueError if tp is below 1 or above the number of query
/// heads.
Layout make_layout(const Config& config, int tp);

/// What one rank has of them.
struct LocalRanges {
  base::Range heads;     // query heads
  base::Range kv_heads;  // KV heads, which other ranks may have too
  base::Range ffn;       // features inside the MLP
  base::Range vocab;     // vocabulary rows
};
/// Returns make_layout(config, tp) at `rank`, without the ranges of the others. Arguments as there.
LocalRanges local_ranges(const Config& config, int tp, int rank);

}  // namespace shardwise::config
