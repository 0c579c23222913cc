// UTF-8 as text rooms need it: what is a character, and what stands for bytes that are none.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace shardwise::text {

inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

/// What the bytes at a place are: a character of `length` bytes, or `length` bytes that are none and stand
/// for one U+FFFD (the longest beginning of a character, Unicode 3.9). `may_go_on`: the text ended there.
struct Utf8Unit {
  uint32_t length;
  bool is_character, may_go_on;
};
/// Of the bytes at `at` < text.size().
Utf8Unit utf8_unit(std::string_view text, size_t at);

/// The code point of the character at `at`, which must be one.
char32_t code_point(std::string_view text, size_t at);
/// Where the character before `end` > 0 begins, in UTF-8.
size_t character_before(std::string_view text, size_t end);
/// Unicode's White_Space, which \s stands for in tokenizers.
bool is_white_space(char32_t c);

bool is_utf8(std::string_view text);
/// As Python's text.decode("utf-8", "replace").
std::string replace_invalid(std::string_view text);

/// The same for bytes that come in parts: only whole characters leave it.
class Utf8Stream {
 public:
  /// The characters that `bytes` completes, what can become none replaced; the rest waits.
  std::string push(std::string_view bytes);
  /// What is left once no more bytes come.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace shardwise::text
