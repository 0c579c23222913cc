#include "shardwise/text/special_tokens.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <set>

#include "shardwise/base/error.h"
#include "shardwise/base/json.h"
#include "shardwise/text/model_directory.h"

namespace shardwise::text {

using nlohmann::json;

namespace {

using TokensByName = std::map<std::string, std::string>;

bool is_standard(const std::string& name) {
  static const std::set<std::string> names{"bos_token", "eos_token", "unk_token", "sep_token",
                                           "pad_token", "cls_token", "mask_token"};
  return names.contains(name);
}

void add(const std::string& name, const json& token, const std::string& path, TokensByName& tokens) {
  const std::string* text = token_text(token);
  TORCH_CHECK_VALUE(text, path, ": ", base::shortened(name), " must be a string or an AddedToken; got ",
                    base::shown(token), " [SW0214]");
  tokens[name] = *text;
}

bool is_custom(const std::string& name) {
  return name.ends_with("_token") && !is_standard(name);
}

/// Adds every `*_token` field. Nonstandard ones that are flags (add_bos_token) or lists are skipped.
void add_named(const json& fields, const std::string& path, TokensByName& tokens) {
  for (const auto& [name, value] : fields.items()) {
    const bool is_given = is_standard(name) ? !value.is_null() : is_custom(name) && token_text(value);
    if (is_given) add(name, value, path, tokens);
  }
}

/// Adds the tokens of `fields[field]` if it is an object.
void add_object(const json& fields, const char* field, const std::string& path, TokensByName& tokens) {
  const auto found = fields.find(field);
  if (found == fields.end() || !found->is_object()) return;
  for (const auto& [name, value] : found->items()) add(name, value, path, tokens);
}

/// Returns the model-specific special tokens of tokenizer_config.json.
TokensByName custom_tokens(const json& config, const std::string& path) {
  TokensByName tokens;
  for (const auto& [name, value] : config.items()) {
    if (is_custom(name) && value.is_string()) add(name, value, path, tokens);
  }
  add_object(config, "extra_special_tokens", path, tokens);
  if (tokens.empty()) add_object(config, "model_specific_special_tokens", path, tokens);
  return tokens;
}

}  // namespace

TokensByName read_special_tokens(const std::string& directory, const json& config) {
  const std::string path = directory + "/tokenizer_config.json",
                    older_path = directory + "/special_tokens_map.json";
  const bool is_new = config.contains("added_tokens_decoder");
  const json older = is_new ? json::object() : read_object(older_path);
  // Later tokens replace earlier ones of the same name.
  TokensByName tokens;
  add_named(config, path, tokens);
  add_named(older, older_path, tokens);
  for (const auto& [name, text] : custom_tokens(config, path)) tokens[name] = text;
  add_object(older, "extra_special_tokens", older_path, tokens);
  return tokens;
}

}  // namespace shardwise::text
