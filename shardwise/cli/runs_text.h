// `shardwise report` without --out: training runs as tables and curves of characters.
#pragma once
#include <string>
#include <vector>

#include "shardwise/cli/run_file.h"
#include "shardwise/cli/timeline.h"

namespace shardwise::cli {

/// Returns the tables of the runs, their losses as curves on one scale, and how the others' losses differ
/// from the first's.
std::string to_text(const std::vector<RunFile>& runs);

/// Returns what each rank's last step, prompt or token is made of.
std::string to_text(const std::vector<TimelineRank>& timeline);

}  // namespace shardwise::cli
