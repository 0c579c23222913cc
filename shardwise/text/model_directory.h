// What the files of a model's directory that tell of its tokens have in common.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace shardwise::text {

/// The object that a JSON file holds; an empty one where there is no file.
/// Errors: c10::ValueError for a file that holds anything else.
nlohmann::json read_object(const std::string& path);

/// The directory that `file` lies in.
std::string directory_of(const std::string& file);

/// The text of a token that stands as a string or as the fields of an AddedToken; nullptr for what is
/// neither.
const std::string* token_text(const nlohmann::json& token);

}  // namespace shardwise::text
