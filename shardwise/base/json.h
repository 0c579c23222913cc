// Reading a JSON object field by field, with errors that name the field.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shardwise::base {

/// A JSON value (or a string, quoted) as errors show it: at most 60 characters, on one line.
std::string shown(const nlohmann::json& value);

/// The value of a JSON text in which no object names a field twice: which of two counts would be anybody's
/// guess. Errors: c10::ValueError beginning with `where`, also for more than 100 levels of nesting.
nlohmann::json parse_json(const std::string& text, const std::string& where);

/// One JSON object; every reading checks the type. null counts as left out, as in transformers.
class Fields {
 public:
  /// `where` begins every error: "config.json: " or "config.json: rope_scaling.". Keeps a reference to
  /// `object`.
  Fields(const nlohmann::json& object, std::string where);

  /// The field, or nullptr where it is left out.
  const nlohmann::json* find(const char* name) const;
  bool is_null(const char* name) const { return object_.contains(name) && object_[name].is_null(); }
  std::string label(const char* name) const { return where_ + name; }

  // These must be given.
  int64_t integer(const char* name) const;
  double number(const char* name) const;
  /// A word that errors can show as it is: at most 40 printable ASCII characters.
  std::string text(const char* name) const;

  // These leave `value` as it is where the field is left out.
  void or_integer(const char* name, int64_t& value) const;
  void or_number(const char* name, double& value) const;
  void or_text(const char* name, std::string& value) const;
  void or_flag(const char* name, bool& value) const;
  /// A whole number stands for a list of one.
  void or_integers(const char* name, std::vector<int64_t>& values) const;

  /// `value`, which stands in the field `name`, as a whole number.
  int64_t to_integer(const nlohmann::json& value, const char* name) const;

 private:
  const nlohmann::json& required(const char* name) const;
  void check(bool is_met, const char* name, const char* rule, const nlohmann::json& value) const;

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace shardwise::base
