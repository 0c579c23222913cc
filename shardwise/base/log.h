// Log messages on standard error, made printable (error.h). Results go to standard output, which
// this file does not write.
#pragma once
#include <string_view>

namespace shardwise::base {

/// Logs `text`, which may have several lines, such as a table.
void log_info(std::string_view text);
/// Logs "warning: `text`", in yellow on a terminal.
void log_warning(std::string_view text);
/// Logs "error: `text`", in red on a terminal.
void log_error(std::string_view text);

}  // namespace shardwise::base
