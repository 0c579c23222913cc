// Checked standard input: a read error is reported, not treated as the end of the input.
#pragma once
#include <optional>
#include <string>

namespace shardwise::cli {

/// Returns the next line without its newline, or nullopt at the end of the input. Errors: c10::Error if
/// reading fails.
std::optional<std::string> read_line();
/// Returns the rest of the input. Errors: as read_line.
std::string read_input();

}  // namespace shardwise::cli
