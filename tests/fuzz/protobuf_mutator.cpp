// Mutations of protobuf messages (tokenizer.model): fields are edited and stay well-formed, so that a reader
// reaches the rules of their values.
#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "tests/fuzz/mutator.h"

namespace shardwise::fuzz {

/// A field as its tag and its payload, without the length of one of bytes.
struct Mutator::ProtobufField {
  uint64_t tag = 0;
  std::string payload = {};
  uint64_t wire_type() const { return tag & 7; }
};

namespace {

constexpr uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

/// Takes `size` bytes from the start of `rest`. Throws std::invalid_argument if it has fewer.
std::string take(std::string_view& rest, uint64_t size) {
  if (size > rest.size()) throw std::invalid_argument("no protobuf message");
  const std::string bytes(rest.substr(0, size));
  rest.remove_prefix(size);
  return bytes;
}

uint64_t take_varint(std::string_view& rest) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<unsigned char>(take(rest, 1)[0]);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  throw std::invalid_argument("no protobuf message");
}

std::string take_payload(std::string_view& rest, uint64_t wire_type) {
  switch (wire_type) {
    case kVarint:
      return varint(take_varint(rest));
    case kFixed64:
      return take(rest, 8);
    case kBytes:
      return take(rest, take_varint(rest));
    case kFixed32:
      return take(rest, 4);
    default:
      throw std::invalid_argument("no protobuf message");
  }
}

/// Returns the fields of a message. Throws std::invalid_argument if `rest` is none.
template <class Field>
std::vector<Field> fields_of(std::string_view rest) {
  std::vector<Field> fields;
  while (!rest.empty()) {
    Field field{take_varint(rest)};
    field.payload = take_payload(rest, field.wire_type());
    fields.push_back(std::move(field));
  }
  return fields;
}

template <class Field>
std::string text_of(const std::vector<Field>& fields) {
  std::string text;
  for (const Field& field : fields) {
    text += varint(field.tag);
    if (field.wire_type() == kBytes) text += varint(field.payload.size());
    text += field.payload;
  }
  return text;
}

}  // namespace

std::string Mutator::changed_payload(const ProtobufField& field, const ProtobufField& donor) {
  static constexpr std::array<uint64_t, 8> kIntegers{
      0, 1, 2, 6, 1 << 20, uint64_t{1} << 31, uint64_t{1} << 63, std::numeric_limits<uint64_t>::max()};
  if (field.wire_type() == kVarint) return varint(one_in(4) ? random_() : kIntegers[below(kIntegers.size())]);
  if (field.wire_type() == kFixed32 && one_in(2)) {  // as floats: 0, -1, infinity, NaN
    static constexpr std::array<std::string_view, 4> kFloats{
        {{"\0\0\0\0", 4}, {"\0\0\x80\xbf", 4}, {"\0\0\x80\x7f", 4}, {"\0\0\xc0\x7f", 4}}};
    return std::string(kFloats[below(kFloats.size())]);
  }
  if (field.wire_type() != kBytes) {
    std::string number(field.payload.size(), '\0');
    for (char& byte : number) byte = static_cast<char>(below(256));
    return number;
  }
  if (one_in(16)) return std::string(3000, 'x');
  if (one_in(3)) return bytes(field.payload);
  try {
    return protobuf(field.payload, donor.wire_type() == kBytes ? donor.payload : field.payload);
  } catch (const std::invalid_argument&) {
    return bytes(field.payload);
  }
}

void Mutator::edit(std::vector<ProtobufField>& fields, const std::vector<ProtobufField>& donors) {
  static const ProtobufField kNone;
  const ProtobufField donor = donors.empty() ? kNone : donors[below(donors.size())];
  if (fields.empty()) return fields.push_back(donor);
  // Often one of the last, which in a model are the few settings after its many pieces.
  const size_t last = std::min<size_t>(fields.size(), 3);
  const size_t at = one_in(2) ? below(fields.size()) : fields.size() - 1 - below(last);
  const auto place = fields.begin() + static_cast<std::ptrdiff_t>(at);
  switch (below(8)) {
    case 0:
      fields.erase(place);
      break;
    case 1:
      fields.insert(place, ProtobufField(*place));
      break;
    case 2:
      std::swap(fields[at], fields[below(fields.size())]);
      break;
    case 3:
      fields.insert(place, donor);
      break;
    case 4:
      place->tag += 8;  // the next field number
      break;
    default:
      place->payload = changed_payload(*place, donor);
  }
}

std::string Mutator::protobuf(const std::string& file, const std::string& other) {
  auto fields = fields_of<ProtobufField>(file);
  const auto donors = fields_of<ProtobufField>(other);
  for (size_t edits = 1 + below(3); edits > 0; --edits) edit(fields, donors);
  const std::string changed = text_of(fields);
  return one_in(16) ? bytes(changed) : changed;
}

}  // namespace shardwise::fuzz
