// Patterns of tokenizers, written for Oniguruma and matched by PCRE2's compiled code.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::text {

/// Where a match lies, in bytes.
struct Span {
  size_t begin, end;
};

/// `pattern` with the same meaning for PCRE2: \s, \w and \d are spelled out, since the two libraries differ
/// in them. Errors: c10::ValueError beginning with `where` for what is not known to mean the same (anchors,
/// \b, sets within sets).
std::string to_pcre2(const std::string& pattern, const std::string& where);

/// One pattern; searched by one thread at a time.
class Regex {
 public:
  /// `pattern` as tokenizer.json has it. Errors: c10::ValueError beginning with `where`, also for one that
  /// matches the empty text.
  Regex(const std::string& pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;

  /// The first match at or after `from`. `text` must be UTF-8, `from` the beginning of a character.
  /// Errors: c10::ValueError when PCRE2 gives up (a pattern that backtracks without end).
  std::optional<Span> find(std::string_view text, size_t from) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace shardwise::text
