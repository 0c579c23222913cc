// What `shardwise plan --largest` prints.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/largest.h"

namespace shardwise::cli {

/// Returns a table of what fits with each number of ranks of tensor parallelism.
std::string to_text(const std::vector<plan::LargestTraining>& all, plan::Grown grown);
std::string to_text(const std::vector<plan::LargestInference>& all, int64_t tokens_per_text);
/// Returns a line with one JSON object.
std::string to_json(const std::vector<plan::LargestTraining>& all, plan::Grown grown);
std::string to_json(const std::vector<plan::LargestInference>& all, int64_t tokens_per_text);

}  // namespace shardwise::cli
