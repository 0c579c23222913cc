// UTF-8: iteration over characters, and replacement of invalid bytes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "shardwise/base/utf8.h"

namespace shardwise::text {

inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

using base::utf8_unit, base::Utf8Unit;

/// Returns the code point of the character at `at`, which must be valid.
char32_t code_point(std::string_view text, size_t at);
/// Returns the start of the character before `end` > 0. `text` must be valid UTF-8.
size_t character_before(std::string_view text, size_t end);
/// Returns whether `c` has Unicode's White_Space property, which is \s in tokenizers.
bool is_white_space(char32_t c);

bool is_utf8(std::string_view text);
/// The number of bytes that are not part of a valid character, and the offset of the first of them.
struct InvalidBytes {
  int64_t count, first;
};
InvalidBytes invalid_bytes(std::string_view text);
/// Replaces invalid bytes as Python's text.decode("utf-8", "replace") does.
std::string replace_invalid(std::string_view text);

/// Replaces invalid bytes in a stream of bytes. Returns complete characters only.
class Utf8Stream {
 public:
  /// Adds bytes and returns the characters that are complete, with invalid bytes replaced. Holds back a
  /// truncated character.
  std::string push(std::string_view bytes);
  /// Returns the replacement of a truncated character at the end of the stream.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace shardwise::text
