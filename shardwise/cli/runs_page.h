// `shardwise report --out FILE`: training runs as one page that needs no network. The program computes, and
// the page's script (report_page/) draws.
#pragma once
#include <string>
#include <vector>

#include "shardwise/cli/run_file.h"
#include "shardwise/cli/timeline.h"

namespace shardwise::cli {

/// Returns the page; `timeline` may be empty.
std::string page_of(const std::vector<RunFile>& runs, const std::vector<TimelineRank>& timeline);

}  // namespace shardwise::cli
