// Regular expressions of tokenizers, which are written for Oniguruma and matched by PCRE2.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::text {

/// A range of bytes in a text.
struct Span {
  size_t begin, end;
};

/// Translates an Oniguruma pattern to PCRE2: expands \s, \w and \d, which differ between the libraries.
/// Throws c10::ValueError with a message that starts with `where` for syntax that is not known to have equal
/// meaning in both (anchors, \b, nested sets).
std::string to_pcre2(const std::string& pattern, const std::string& where);

/// A compiled regular expression. Not thread-safe.
class Regex {
 public:
  /// How PCRE2 matches. It interprets patterns on systems that forbid writing machine code.
  enum class Matcher { machine_code_if_possible, interpreter };

  /// Compiles an Oniguruma pattern. Throws c10::ValueError with a message that starts with `where` if the
  /// pattern is not supported or matches the empty string.
  Regex(const std::string& pattern, const std::string& where,
        Matcher matcher = Matcher::machine_code_if_possible);
  ~Regex();

  /// Returns the first match at or after `from`. `text` must be UTF-8, and `from` the start of a character.
  /// Throws c10::ValueError if one match takes PCRE2 more than 50 million steps (catastrophic backtracking),
  /// or 64 MiB for its state.
  std::optional<Span> find(std::string_view text, size_t from) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace shardwise::text
