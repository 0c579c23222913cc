// What the processor is called: printed beside every figure, and part of what a measurement holds for.
#pragma once
#include <string>

namespace shardwise::base {

/// As /proc tells it; "unknown" where it does not.
std::string cpu_name();

}  // namespace shardwise::base
