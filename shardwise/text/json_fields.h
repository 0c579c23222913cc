// What the readers of tokenizer.json share: strings of any characters, and refusals that name field and
// value.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/base/json.h"

namespace shardwise::text {

/// Throws `label must be rule; got value`, c10::ValueError.
[[noreturn]] void refuse(const std::string& label, const std::string& rule, const nlohmann::json& value);

/// `value` as a token's id: a whole number below 2^24, far beyond any vocabulary. Errors: c10::ValueError.
uint32_t token_id(const nlohmann::json& value, const std::string& label);

/// A part of tokenizer.json: `where` ends in a colon and blank, or in a dot.
struct JsonPart {
  const nlohmann::json& object;
  std::string where;
  base::Fields fields{object, where};

  std::string label(const std::string& name) const { return where + name; }
  /// The field's value; errors where it is left out.
  const nlohmann::json& at(const char* name) const;
  std::string text(const char* name) const;
  bool flag(const char* name, bool otherwise) const;
  std::string type() const { return text("type"); }
  JsonPart part(const char* name) const { return {at(name), label(name) + "."}; }
  /// The list's elements, each an object.
  std::vector<JsonPart> parts(const char* name) const;
  /// A text of one character.
  std::string character(const char* name) const;
  bool has(const char* name) const { return fields.find(name) != nullptr; }
  /// Errors: c10::ValueError for a field that is none of these and not null: it may ask for something.
  void allow(std::initializer_list<std::string_view> names) const;
};

}  // namespace shardwise::text
