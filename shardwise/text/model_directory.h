// Helpers for reading the tokenizer's JSON files in a model directory.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwise::text {

/// Reads the JSON object in a file; returns an empty one if the file does not exist.
/// Throws c10::ValueError if the file does not contain a JSON object.
nlohmann::json read_object(const std::string& path);

/// Returns the directory of `file`.
std::string directory_of(const std::string& file);

/// Returns the text of a token that is a string or an AddedToken object; nullptr if it is neither.
const std::string* token_text(const nlohmann::json& token);

}  // namespace shardwise::text
