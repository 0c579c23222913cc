#include "shardwise/text/byte_level.h"

#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

constexpr char32_t kCharacters = 0x144;  // one more than the largest code point that maps to a byte

bool maps_to_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/// Returns the code point of each byte: the byte itself if it is printable, else the next from U+0100 on.
std::array<char32_t, 256> byte_code_points() {
  std::array<char32_t, 256> points{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) points[byte] = maps_to_itself(byte) ? byte : next++;
  return points;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const auto characters = [] {
    std::array<std::string, 256> all;
    const auto points = byte_code_points();
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t c = points[byte];
      all[byte] = c < 0x80
                      ? std::string{static_cast<char>(c)}
                      : std::string{static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
    }
    return all;
  }();
  return characters;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  static const auto byte_of = [] {
    std::array<int, kCharacters> bytes;
    bytes.fill(-1);
    const auto points = byte_code_points();
    for (int byte = 0; byte < 256; ++byte) bytes[points[byte]] = byte;
    return bytes;
  }();
  std::string bytes;
  for (size_t at = 0; at < token.size(); at += utf8_unit(token, at).length) {
    const char32_t c = code_point(token, at);
    if (c >= kCharacters || byte_of[c] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_of[c]);
  }
  return bytes;
}

}  // namespace shardwise::text
