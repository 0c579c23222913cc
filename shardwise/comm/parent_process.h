// The process that started this one, as a name that its other children find too.
#pragma once
#include <string>

namespace shardwise::comm {

/// "<pid>-<start time>": unlike the id alone, it never comes back.
/// Errors: c10::Error when /proc does not tell.
std::string parent_process();

}  // namespace shardwise::comm
