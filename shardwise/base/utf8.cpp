#include "shardwise/base/utf8.h"

#include <algorithm>

namespace shardwise::base {
namespace {

/// Returns whether `second` is a valid second byte: rejects overlong forms, surrogates and above U+10FFFF.
bool may_follow(uint8_t first, uint8_t second) {
  const uint8_t least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const uint8_t most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  return second >= least && second <= most;
}

}  // namespace

Utf8Unit utf8_unit(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  const uint32_t length = utf8_length(first);
  if (length <= 1) return {1, length == 1, false};
  const auto available = static_cast<uint32_t>(std::min<size_t>(length, text.size() - at));
  if (available < 2) return {1, false, true};
  if (!may_follow(first, byte(at + 1))) return {1, false, false};
  uint32_t seen = 2;
  while (seen < available && is_utf8_continuation(byte(at + seen))) ++seen;
  return {seen, seen == length, seen < length && seen == available};
}

}  // namespace shardwise::base
