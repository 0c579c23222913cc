// The characters of UTF-8 text.
#pragma once
#include <cstdint>
#include <string_view>

namespace shardwise::base {

/// Returns the length of a character with this first byte; 0 if none begins with it.
inline uint32_t utf8_length(uint8_t first) {
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;
  if (first < 0xe0) return 2;
  if (first < 0xf0) return 3;
  return first < 0xf5 ? 4 : 0;
}

/// Returns whether `byte` continues a character.
inline bool is_utf8_continuation(uint8_t byte) {
  return (byte & 0xc0) == 0x80;
}

/// A character of `length` bytes, or `length` invalid bytes that are replaced by one U+FFFD (a maximal
/// subpart of a character, Unicode 3.9). `is_truncated`: the text ended within a character.
struct Utf8Unit {
  uint32_t length;
  bool is_character, is_truncated;
};
/// Returns the unit at `at` < text.size().
Utf8Unit utf8_unit(std::string_view text, size_t at);

}  // namespace shardwise::base
