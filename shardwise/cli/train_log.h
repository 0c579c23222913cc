// The log file of `shardwise train --log`: one JSON line per step.
#pragma once
#include <cstdint>
#include <string>

namespace shardwise::cli {

/// Removes the lines of steps after `step` from a log, because a resumed run writes them again; replaces the
/// file atomically. Other lines stay, and a file that is not a regular one (a terminal) is not read. Returns
/// the number of removed lines. Errors: base::FileError.
int64_t drop_steps_after(const std::string& path, int64_t step);

}  // namespace shardwise::cli
