// The environment variables of this process. Every other source reads them here.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace shardwise::base {

/// Returns the value of a variable, or nullopt if it is not set.
std::optional<std::string> env_text(const char* variable);

/// Returns the value of a variable that holds a count, or `fallback` if it is not set.
/// Errors: c10::ValueError if the value is not an integer or is below `least`.
int env_count(const char* variable, int least, int fallback);

/// Returns all variables, each as NAME=value.
std::vector<std::string> env_all();

}  // namespace shardwise::base
