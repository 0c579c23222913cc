#include "shardwise/text/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/base/json.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {

bool is_token_id(const nlohmann::json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{1} << 24;
}

uint32_t token_id(const nlohmann::json& value, const std::string& label) {
  if (!is_token_id(value)) throw_invalid(label, "an integer from 0 to 2^24 - 1", value);
  return value.get<uint32_t>();
}

std::string JsonPart::text(const char* name) const {
  const nlohmann::json& value = at(name);
  if (!value.is_string()) throw_invalid(label(name), "a string", value);
  return value.get<std::string>();
}

std::string JsonPart::character(const char* name) const {
  std::string character = text(name);
  const bool is_one = !character.empty() && utf8_unit(character, 0).length == character.size();
  if (!is_one) throw_invalid(label(name), "one character", character);
  return character;
}

std::vector<JsonPart> JsonPart::parts(const char* name) const {
  const nlohmann::json& list = at(name);
  if (!list.is_array()) throw_invalid(label(name), "a list", list);
  if (lists == kMaxLists) throw_invalid(label(name), fmt::format("within at most {} lists", kMaxLists), list);
  std::vector<JsonPart> parts;
  for (size_t i = 0; i < list.size(); ++i) {
    parts.push_back({list[i], label(name) + "[" + std::to_string(i) + "].", lists + 1});
  }
  return parts;
}

bool JsonPart::flag(const char* name, bool default_value) const {
  fields.or_flag(name, default_value);
  return default_value;
}

void JsonPart::allow(std::initializer_list<std::string_view> names) const {
  for (const auto& [name, value] : object.items()) {
    const bool is_known = std::find(names.begin(), names.end(), name) != names.end();
    if (!is_known && !value.is_null()) throw_invalid(where + base::shown(name), "omitted", value);
  }
}

}  // namespace shardwise::text
