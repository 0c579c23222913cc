// One-line messages to people, on standard error. Results go to standard output and are not this file's.
#pragma once
#include <string_view>

namespace shardwise::base {

void log_info(std::string_view text);
/// Begins "warning: ", yellow on a terminal.
void log_warning(std::string_view text);
/// Begins "error: ", red on a terminal.
void log_error(std::string_view text);

}  // namespace shardwise::base
