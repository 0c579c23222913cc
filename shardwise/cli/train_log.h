// The log file of `shardwise train --log`: one JSON line per step.
#pragma once
#include <cstdint>
#include <string>

namespace shardwise::cli {

/// Removes the lines of steps after `step` from a log, because a resumed run writes them again, and what is
/// left of a last line of which a full disk or a crash took the rest. Replaces the file atomically, also if
/// `path` is a link to it. Other lines stay, and a file that is not a regular one (a terminal) is not read.
/// Returns the number of removed steps. Errors: base::FileError.
int64_t drop_steps_after(const std::string& path, int64_t step);

}  // namespace shardwise::cli
