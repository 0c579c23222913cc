// The ranks and layers of pipeline stages, as commands print them before they start.
#pragma once
#include <string>

#include "shardwise/base/split.h"
#include "shardwise/config/stages.h"

namespace shardwise::cli {

/// Returns "3", "0 to 4" or "none".
std::string numbers_text(const base::Range& numbers);

/// Returns a table, which begins with `command`, of the stages' ranks and of their shares of `layers` layers.
std::string stages_table(const std::string& command, const config::Stages& stages, int64_t layers,
                         int64_t ranks_of_a_stage);

}  // namespace shardwise::cli
