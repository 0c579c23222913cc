// What `shardwise plan --matrix` prints.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/decision_matrix.h"

namespace shardwise::cli {

/// Returns a table of the runs with their fastest plan and what is advised for them.
std::string to_text(const std::vector<plan::Decision>& decisions);
/// Returns a line with one JSON object.
std::string to_json(const std::vector<plan::Decision>& decisions);

}  // namespace shardwise::cli
