// The processor's model name, recorded with every benchmark result and used as part of a measurement's key.
#pragma once
#include <string>

namespace shardwise::base {

/// Returns the model name from /proc/cpuinfo, or "unknown" if it lists none.
std::string cpu_name();

}  // namespace shardwise::base
