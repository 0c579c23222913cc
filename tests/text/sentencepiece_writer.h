// Writes the bytes of a tokenizer.model, field by field, also invalid ones.
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "shardwise/text/sentencepiece_model.h"

namespace shardwise::test {

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
inline std::string integer_field(uint64_t number, uint64_t value) {
  return varint(number << 3) + varint(value);
}
inline std::string bytes_field(uint64_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}
inline std::string float_field(uint64_t number, float value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return varint(number << 3 | 5) + bytes;
}
inline std::string piece_field(const text::Piece& piece) {
  return bytes_field(1, bytes_field(1, piece.text) + float_field(2, piece.score) +
                            integer_field(3, static_cast<uint64_t>(piece.type)));
}
/// The trainer_spec with `fields`.
inline std::string trainer_field(const std::string& fields) {
  return bytes_field(2, fields);
}
/// The normalizer_spec with `fields`.
inline std::string normalizer_field(const std::string& fields) {
  return bytes_field(3, fields);
}

/// Returns <unk>, <s> and </s>; then the byte pieces; then `texts` with scores 0, -1, -2, ...
inline std::vector<text::Piece> pieces_with_bytes(const std::vector<std::string>& texts) {
  using Type = text::Piece::Type;
  std::vector<text::Piece> pieces{
      {"<unk>", 0, Type::unknown}, {"<s>", 0, Type::control}, {"</s>", 0, Type::control}};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr const char* kHex = "0123456789ABCDEF";
    pieces.push_back({std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">", 0, Type::byte});
  }
  for (const std::string& text : texts) pieces.push_back({text, -float(pieces.size()), Type::normal});
  return pieces;
}

inline std::string pieces_field(const std::vector<text::Piece>& pieces) {
  std::string fields;
  for (const text::Piece& piece : pieces) fields += piece_field(piece);
  return fields;
}

}  // namespace shardwise::test
