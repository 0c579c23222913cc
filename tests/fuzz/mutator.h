// Mutates inputs but keeps most of their structure, because a reader rejects pure noise early.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <random>
#include <string>
#include <vector>

namespace shardwise::fuzz {

class Mutator {
 public:
  /// The mutations are deterministic for a seed.
  explicit Mutator(uint64_t seed) : random_(seed) {}

  /// Applies one to four edits to the values, members and elements of a JSON text, some of them taken from
  /// `other`. Sometimes also edits bytes, duplicates a member, or adds deep nesting.
  std::string json(const std::string& text, const std::string& other);

  /// Edits a safetensors file's header (usually with a correct length), the length of its data, and its
  /// bytes.
  std::string safetensors(const std::string& file, const std::string& other);

  /// Edits, repeats, drops or joins lines of JSON.
  std::string lines(const std::string& file, const std::string& other);

  /// Edits, repeats, drops, reorders or exchanges fields of a protobuf message, also of the messages in it.
  std::string protobuf(const std::string& file, const std::string& other);

  /// Edits the bytes of a file without further structure.
  std::string raw(const std::string& file, const std::string& other);

 private:
  using Json = nlohmann::ordered_json;
  struct ProtobufField;

  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  bool one_in(size_t n) { return below(n) == 0; }
  std::string bytes(std::string text);
  Json value();
  Json changed_number(const Json& number);
  void edit(Json& tree, const Json& other);
  void edit(std::vector<ProtobufField>& fields, const std::vector<ProtobufField>& donors);
  std::string changed_payload(const ProtobufField& field, const ProtobufField& donor);
  std::string nested(std::string text);
  std::string member_twice(std::string text, const Json& tree);

  std::mt19937_64 random_;
};

/// Returns the first 8 bytes of a safetensors file.
std::string length_bytes(uint64_t length);

}  // namespace shardwise::fuzz
