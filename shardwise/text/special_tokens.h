// The special tokens of a model directory, which are variables of its chat template.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwise::text {

/// Reads the special tokens from `config`, the object in tokenizer_config.json, and from
/// special_tokens_map.json if `config` has no added_tokens_decoder, as transformers does.
/// Throws c10::ValueError if a token is not a string or an AddedToken.
std::map<std::string, std::string> read_special_tokens(const std::string& directory,
                                                       const nlohmann::json& config);

}  // namespace shardwise::text
