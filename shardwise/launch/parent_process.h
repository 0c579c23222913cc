// A name for the parent process, which all of its children derive alike.
#pragma once
#include <string>

namespace shardwise::launch {

/// Returns "<pid>-<start time>", which unlike the pid alone is never reused.
/// Errors: c10::Error if /proc/<pid>/stat cannot be read.
std::string parent_process();

}  // namespace shardwise::launch
