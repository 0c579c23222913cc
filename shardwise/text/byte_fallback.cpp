#include "shardwise/text/byte_fallback.h"

namespace shardwise::text {
namespace {

constexpr std::string_view kDigits = "0123456789ABCDEF0123456789abcdef";

}  // namespace

std::string byte_fallback_token(uint8_t byte) {
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + '>';
}

std::optional<uint8_t> byte_of_fallback_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  const size_t high = kDigits.find(token[3]), low = kDigits.find(token[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<uint8_t>(high % 16 * 16 + low % 16);
}

}  // namespace shardwise::text
