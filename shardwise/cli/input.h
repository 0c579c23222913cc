// Checked standard input: a read error is reported, not treated as the end of the input.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace shardwise::cli {

/// Returns the next line without its newline, or nullopt at the end of the input. Errors: c10::Error if
/// reading fails.
std::optional<std::string> read_line();
/// Returns the rest of the input. Errors: as read_line, and c10::ValueError if it has more than `max_bytes`
/// bytes, by default as many as a file that is read as a text.
std::string read_input(int64_t max_bytes = int64_t{1} << 30);

}  // namespace shardwise::cli
