#include "shardwise/text/protobuf.h"

#include <c10/util/Exception.h>

#include <bit>

namespace shardwise::text {
namespace {

constexpr int kMaxVarintBits = 64;

[[noreturn]] void throw_malformed(std::string_view where, const char* what) {
  TORCH_CHECK_VALUE(false, where, "must be a SentencePiece model; got ", what, " [SW0163]");
}

}  // namespace

void ProtoField::check(WireType expected) const {
  if (type_ != expected) throw_malformed(where_, "a field of another type");
}

uint64_t ProtoField::integer() const {
  check(WireType::varint);
  return integer_;
}

float ProtoField::float32() const {
  check(WireType::fixed32);
  return std::bit_cast<float>(static_cast<uint32_t>(integer_));
}

std::string_view ProtoField::bytes() const {
  check(WireType::bytes);
  return bytes_;
}

std::optional<ProtoField> ProtoMessage::next() {
  if (rest_.empty()) return std::nullopt;
  const uint64_t tag = read_varint();
  ProtoField field;
  field.where_ = where_;
  field.number_ = static_cast<uint32_t>(tag >> 3);
  if (tag >> 3 == 0 || tag >> 32 != 0) throw_malformed(where_, "an invalid field number");
  switch (tag & 7) {
    case 0:
      field.type_ = ProtoField::WireType::varint;
      field.integer_ = read_varint();
      return field;
    case 1:
      field.type_ = ProtoField::WireType::fixed64;
      field.integer_ = read_fixed(sizeof(uint64_t));
      return field;
    case 2:
      field.type_ = ProtoField::WireType::bytes;
      field.bytes_ = read_bytes(read_varint());
      return field;
    case 5:
      field.type_ = ProtoField::WireType::fixed32;
      field.integer_ = read_fixed(sizeof(uint32_t));
      return field;
    default:
      throw_malformed(where_, "an unknown wire type");
  }
}

uint64_t ProtoMessage::read_varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < kMaxVarintBits; shift += 7) {
    const auto byte = static_cast<uint8_t>(read_bytes(1)[0]);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  throw_malformed(where_, "an integer of more than 10 bytes");
}

uint64_t ProtoMessage::read_fixed(size_t bytes) {
  const std::string_view little_endian = read_bytes(bytes);
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(little_endian[i])} << (8 * i);
  return value;
}

std::string_view ProtoMessage::read_bytes(uint64_t length) {
  if (length > rest_.size()) throw_malformed(where_, "a field that ends beyond its message");
  const std::string_view bytes = rest_.substr(0, length);
  rest_.remove_prefix(length);
  return bytes;
}

}  // namespace shardwise::text
