// Helpers of the tokenizer.json readers: typed access to fields, and errors that name the field and value.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/base/json.h"

namespace shardwise::text {

using base::throw_invalid;

/// Returns whether `value` is an integer in [0, 2^24), a bound far above any vocabulary.
bool is_token_id(const nlohmann::json& value);
/// Returns `value` as a token id. Throws c10::ValueError if it is none.
uint32_t token_id(const nlohmann::json& value, const std::string& label);

/// Sequences of steps contain Sequences in no tokenizer that is in use.
inline constexpr int kMaxLists = 8;

/// An object in tokenizer.json and its location for errors; `where` ends in a colon and space, or in a dot.
struct JsonPart {
  const nlohmann::json& object;
  std::string where;
  int lists = 0;  // around it, of those that parts() returned
  base::Fields fields{object, where};

  std::string label(const std::string& name) const { return fields.label(name); }
  /// Returns the field's value. Throws c10::ValueError if it is missing.
  const nlohmann::json& at(const char* name) const { return fields.at(name); }
  std::string text(const char* name) const;
  bool flag(const char* name, bool default_value) const;
  std::string type() const { return text("type"); }
  JsonPart part(const char* name) const { return {at(name), label(name) + ".", lists}; }
  /// Returns the elements of a list of objects. Throws c10::ValueError within kMaxLists lists: each makes the
  /// labels in errors longer.
  std::vector<JsonPart> parts(const char* name) const;
  /// Returns a string of exactly one character.
  std::string character(const char* name) const;
  bool has(const char* name) const { return fields.find(name) != nullptr; }
  /// Throws c10::ValueError if the object has another, non-null field, since that may request an unsupported
  /// feature.
  void allow(std::initializer_list<std::string_view> names) const;
};

}  // namespace shardwise::text
