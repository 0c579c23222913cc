#include "shardwise/text/utf8.h"

#include <algorithm>
#include <cstring>

namespace shardwise::text {
namespace {

constexpr uint64_t kHighBits = 0x8080808080808080;

/// Returns the first position from `at` on that is not ASCII.
size_t skip_ascii(std::string_view text, size_t at) {
  for (uint64_t word; at + sizeof(word) <= text.size(); at += sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    if (word & kHighBits) break;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) ++at;
  return at;
}

/// Appends `text` with invalid bytes replaced. With `holds_back`, stops before a truncated last character.
/// Returns the position where it stopped.
size_t append_valid(std::string_view text, bool holds_back, std::string& out) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t next = skip_ascii(text, at);
    out.append(text.substr(at, next - at));
    at = next;
    while (at < text.size() && static_cast<uint8_t>(text[at]) >= 0x80) {
      const Utf8Unit unit = utf8_unit(text, at);
      if (unit.is_truncated && holds_back) return at;
      out.append(unit.is_character ? text.substr(at, unit.length) : kReplacement);
      at += unit.length;
    }
  }
  return at;
}

}  // namespace

char32_t code_point(std::string_view text, size_t at) {
  const auto first = static_cast<uint8_t>(text[at]);
  const auto length = static_cast<uint32_t>(std::min<size_t>(base::utf8_length(first), text.size() - at));
  char32_t c = length == 1 ? first : first & (0xff >> (length + 1));
  for (uint32_t i = 1; i < length; ++i) c = c << 6 | (static_cast<uint8_t>(text[at + i]) & 0x3f);
  return c;
}

size_t character_before(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && base::is_utf8_continuation(static_cast<uint8_t>(text[end])));
  return end;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; (at = skip_ascii(text, at)) < text.size();) {
    const Utf8Unit unit = utf8_unit(text, at);
    if (!unit.is_character) return false;
    at += unit.length;
  }
  return true;
}

InvalidBytes invalid_bytes(std::string_view text) {
  InvalidBytes invalid{0, 0};
  for (size_t at = 0; (at = skip_ascii(text, at)) < text.size();) {
    const Utf8Unit unit = utf8_unit(text, at);
    if (!unit.is_character) {
      if (invalid.count == 0) invalid.first = static_cast<int64_t>(at);
      invalid.count += unit.length;
    }
    at += unit.length;
  }
  return invalid;
}

std::string replace_invalid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  append_valid(text, /*holds_back=*/false, out);
  return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  pending_.erase(0, append_valid(pending_, /*holds_back=*/true, out));
  return out;
}

std::string Utf8Stream::finish() {
  std::string out;
  append_valid(pending_, /*holds_back=*/false, out);
  pending_.clear();
  return out;
}

}  // namespace shardwise::text
