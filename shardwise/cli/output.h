// Standard output, whose loss is a failure: what it was to take may be all that a command is run for.
#pragma once
#include <string>

namespace shardwise::cli {

/// Prints at once. Errors: those of check_output.
void print(const std::string& text);
/// Errors: c10::Error when standard output has not taken all that was printed so far.
void check_output();

}  // namespace shardwise::cli
