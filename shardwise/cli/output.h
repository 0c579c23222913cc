// Standard output, whose loss is a failure: what it was to take may be all that a command is run for.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwise::cli {

/// Prints at once. Errors: those of check_output.
void print(const std::string& text);
/// For --json. What is no UTF-8, as where a text ends within a character, is replaced.
std::string json_line(const nlohmann::ordered_json& value);
/// Errors: c10::Error when standard output has not taken all that was printed so far.
void check_output();

}  // namespace shardwise::cli
