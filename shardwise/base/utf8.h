// The characters of UTF-8 text.
#pragma once
#include <cstdint>
#include <string_view>

namespace shardwise::base {

/// A character of `length` bytes, or `length` invalid bytes that are replaced by one U+FFFD (a maximal
/// subpart of a character, Unicode 3.9). `is_truncated`: the text ended within a character.
struct Utf8Unit {
  uint32_t length;
  bool is_character, is_truncated;
};
/// Returns the unit at `at` < text.size().
Utf8Unit utf8_unit(std::string_view text, size_t at);

}  // namespace shardwise::base
