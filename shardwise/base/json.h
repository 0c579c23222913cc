// Reading a JSON object field by field, with errors that name the field. Only the sources that read it
// include nlohmann/json.hpp, which takes a second to compile.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::base {

/// Formats a JSON value, or quotes a text, for error messages, on one line of at most 60 characters.
std::string shown(const nlohmann::json& value);
std::string shown(const std::string& text);

/// The longest JSON that is parsed. As values it takes up to thirty times its bytes, so it may have 64 MiB:
/// twice the largest tokenizer.json in use.
inline constexpr int64_t kMaxJsonBytes = int64_t{64} << 20;

/// Parses `text`. Rejects duplicate keys, which JSON leaves undefined.
/// Errors: c10::ValueError beginning with `where`, also for more than `max_bytes` bytes or 100 levels of
/// nesting.
nlohmann::json parse_json(const std::string& text, const std::string& where,
                          int64_t max_bytes = kMaxJsonBytes);

/// Reads and parses a file. Errors: c10::ValueError, also if the file cannot be read or has more than
/// kMaxJsonBytes.
nlohmann::json read_json(const std::string& path);

/// Throws c10::ValueError with the message `label must be rule; got value`.
[[noreturn]] void throw_invalid(const std::string& label, const std::string& rule,
                                const nlohmann::json& value);
[[noreturn]] void throw_invalid(const std::string& label, const std::string& rule, const std::string& value);

/// Type-checked access to the fields of a JSON object. A null field counts as absent, as in transformers.
class Fields {
 public:
  /// Keeps a reference to `object`. `where` is the prefix of every error, such as "config.json: " or
  /// "config.json: rope_scaling.".
  Fields(const nlohmann::json& object, std::string where);

  /// Returns the field, or nullptr if it is absent.
  const nlohmann::json* find(const char* name) const;
  bool is_null(const char* name) const;
  /// Returns the location of the field, whose name may be one that a file gave.
  std::string label(const std::string& name) const;

  /// Returns a required field of any type. Errors: c10::ValueError if it is absent.
  const nlohmann::json& at(const char* name) const;
  // Required fields. Errors: c10::ValueError if the field is absent or has another type.
  int64_t integer(const char* name) const;
  double number(const char* name) const;
  /// Returns a string of at most 40 printable ASCII characters, which error messages can print verbatim.
  std::string text(const char* name) const;

  // Optional fields: `value` stays unchanged if the field is absent.
  void or_integer(const char* name, int64_t& value) const;
  void or_number(const char* name, double& value) const;
  void or_text(const char* name, std::string& value) const;
  void or_flag(const char* name, bool& value) const;
  /// Reads a list of integers; a single integer counts as a list of one.
  void or_integers(const char* name, std::vector<int64_t>& values) const;

  /// Returns `value`, which was read from the field `name`, as an integer.
  int64_t to_integer(const nlohmann::json& value, const char* name) const;

 private:
  void check(bool is_met, const char* name, const char* rule, const nlohmann::json& value) const;

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace shardwise::base
