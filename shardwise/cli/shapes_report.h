// What `shardwise plan --shapes` prints.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/block_collectives.h"
#include "shardwise/plan/sharded_tensors.h"

namespace shardwise::cli {

/// What the ranks of a block hold and send.
struct ShapesReport {
  int64_t tp = 1;
  std::vector<plan::ShardedTensor> tensors;
  std::vector<plan::BlockCollective> collectives;  // of all modes
};

/// Returns a table of the tensors and of the ranges that each rank holds, and one of the bytes that it sends;
/// of many ranks, the first ones' and the last one's.
std::string to_text(const ShapesReport& report);
/// Returns a line with one JSON object.
std::string to_json(const ShapesReport& report);

}  // namespace shardwise::cli
