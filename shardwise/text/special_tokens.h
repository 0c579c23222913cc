// Which special tokens a model's directory names, as the variables of its chat template.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace shardwise::text {

/// From the object that tokenizer_config.json holds, and from special_tokens_map.json beside it where the
/// former lists no added_tokens_decoder, as transformers does.
/// Errors: c10::ValueError for a token that is neither a string nor an AddedToken.
std::map<std::string, std::string> read_special_tokens(const std::string& directory,
                                                       const nlohmann::json& config);

}  // namespace shardwise::text
