#include "shardwise/text/charsmap.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "shardwise/text/sentencepiece_model.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < sizeof(value); ++i)
    value |= uint32_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  return value;
}

// A unit of the double array: a label of 8 bits, or the highest bit and a value; whether the string so far is
// a rule, whose value then is the unit at the offset; and the offset to the following units.
bool has_label(uint32_t unit, uint8_t label) {
  return (unit & (1u << 31 | 0xff)) == label;
}
bool ends_rule(uint32_t unit) {
  return unit >> 8 & 1;
}
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & 1u << 9) >> 6);
}
uint32_t value_of(uint32_t unit) {
  return unit & ~(1u << 31);
}

/// Throws unless every replacement is short and UTF-8.
void check_replacements(std::string_view replacements, const std::string& where) {
  while (!replacements.empty()) {
    const std::string_view replacement = replacements.substr(0, replacements.find('\0'));
    TORCH_CHECK_VALUE(replacement.size() <= kMaxPieceBytes && is_utf8(std::string(replacement)), where,
                      "a replacement of precompiled_charsmap must be UTF-8 of at most ", kMaxPieceBytes,
                      " bytes; got ", replacement.size(), " bytes [SW0528]");
    replacements.remove_prefix(std::min(replacement.size() + 1, replacements.size()));
  }
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& where) {
  if (bytes.empty()) return;
  constexpr size_t kUnit = sizeof(uint32_t);
  const uint64_t trie_bytes = bytes.size() > kUnit ? little_endian(bytes, 0) : 0;
  TORCH_CHECK_VALUE(
      trie_bytes >= kUnit && trie_bytes % kUnit == 0 && trie_bytes < bytes.size() - kUnit, where,
      "the trie of precompiled_charsmap must be whole units of 4 bytes, followed by replacements; "
      "got ",
      trie_bytes, " of ", bytes.size(), " bytes [SW0529]");
  const size_t end = kUnit + trie_bytes;
  units_.reserve(trie_bytes / kUnit);
  for (size_t at = kUnit; at < end; at += kUnit) units_.push_back(little_endian(bytes, at));
  replacements_ = bytes.substr(end);
  check_replacements(replacements_, where);
}

std::optional<Charsmap::Match> Charsmap::longest_at(std::string_view text, size_t at) const {
  size_t length = 0;
  uint32_t value = 0;
  uint32_t position = offset_of(unit(0));
  const size_t end = std::min(text.size(), at + kMaxPieceBytes);
  for (size_t i = at; i < end && !units_.empty(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint32_t next = unit(position ^ byte);
    if (!has_label(next, byte)) break;
    position ^= byte ^ offset_of(next);
    if (!ends_rule(next)) continue;
    length = i + 1 - at;
    value = value_of(unit(position));
  }
  if (length == 0 || value >= replacements_.size()) return std::nullopt;
  const std::string_view rest = std::string_view(replacements_).substr(value);
  return Match{length, rest.substr(0, rest.find('\0'))};
}

}  // namespace shardwise::text
