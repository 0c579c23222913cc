// Standard input, of which a failure to read is no end.
#pragma once
#include <optional>
#include <string>

namespace shardwise::cli {

/// The next line without its end; none once all are read. Errors: c10::Error when reading fails.
std::optional<std::string> read_line();
/// All that is left. Errors: as read_line.
std::string read_input();

}  // namespace shardwise::cli
