// Reads the wire format of Protocol Buffers (protobuf.dev, "Encoding"), in which a SentencePiece model is
// stored, from untrusted bytes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::text {

/// A field of a message. The accessors throw c10::ValueError if the field has another wire type.
class ProtoField {
 public:
  enum class WireType { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

  uint32_t number() const { return number_; }
  uint64_t integer() const;
  float float32() const;
  bool flag() const { return integer() != 0; }
  /// Returns a string, or the bytes of a nested message, in the memory of the outer message.
  std::string_view bytes() const;

 private:
  friend class ProtoMessage;
  void check(WireType expected) const;

  uint32_t number_ = 0;
  WireType type_ = WireType::varint;
  uint64_t integer_ = 0;  // also the bits of a fixed32 or fixed64
  std::string_view bytes_;
  std::string_view where_;
};

/// Iterates over the fields of a message.
class ProtoMessage {
 public:
  /// Keeps views of `bytes` and of `where`, the prefix of every error.
  ProtoMessage(std::string_view bytes, std::string_view where) : rest_(bytes), where_(where) {}
  /// Returns the next field, or nullopt at the end. Throws c10::ValueError if the bytes are not a field, end
  /// within one, or begin a group, which no message of today contains.
  std::optional<ProtoField> next();

 private:
  uint64_t read_varint();
  uint64_t read_fixed(size_t bytes);
  std::string_view read_bytes(uint64_t length);

  std::string_view rest_;
  std::string_view where_;
};

}  // namespace shardwise::text
