// Checked stdout: a failed write is an error, because the output may be the command's only result.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwise::cli {

/// Prints `text` and flushes. Errors: as check_output.
void print(const std::string& text);
/// Returns `value` as one line of JSON. Replaces invalid UTF-8, as where generated text ends within a
/// character.
std::string json_line(const nlohmann::ordered_json& value);
/// Returns a line of JSON as it may stand in a script element of a page: within JSON,
/// "<" is only in strings.
std::string in_script(const std::string& json);
/// Flushes stdout. Errors: c10::Error if any write to it has failed.
void check_output();

}  // namespace shardwise::cli
