// A model's few splits: which heads, ffn columns and vocabulary rows each rank holds.
#pragma once
#include <string>

#include "shardwise/base/split.h"
#include "shardwise/model/config.h"

namespace shardwise::model {

struct Layout {
  base::Split heads, kv_heads, ffn, vocab;
};

/// Errors: c10::ValueError, beginning with the command, unless each of `tp` ranks gets a query head.
void check_ranks(const std::string& command, const Config& config, int64_t tp);

/// Errors: c10::ValueError when tp is below 1 or above the number of query heads.
Layout make_layout(const Config& config, int tp);

}  // namespace shardwise::model
