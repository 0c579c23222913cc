// What `shardwise plan --shapes` prints.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/sharded_tensors.h"

namespace shardwise::cli {

/// Returns a table of the tensors and of the ranges that each rank holds; of many ranks, the first ones' and
/// the last one's.
std::string to_text(const std::vector<plan::ShardedTensor>& tensors, int64_t tp);
/// Returns a line with one JSON object.
std::string to_json(const std::vector<plan::ShardedTensor>& tensors, int64_t tp);

}  // namespace shardwise::cli
