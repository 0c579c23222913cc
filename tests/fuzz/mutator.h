// Changes inputs so that most of their form survives: a reader that is shown noise only never gets far.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <random>
#include <string>

namespace shardwise::fuzz {

class Mutator {
 public:
  /// The same seed makes the same changes.
  explicit Mutator(uint64_t seed) : random_(seed) {}

  /// One to four edits of the values, members and elements of a JSON text, some of them taken from `other`;
  /// now and then also of its bytes, or a member twice, or brackets without end.
  std::string json(const std::string& text, const std::string& other);

  /// A safetensors file: edits of its header, whose length mostly stays right, of its data's length, and of
  /// its bytes.
  std::string safetensors(const std::string& file, const std::string& other);

  /// A file of no such form: edits of its bytes.
  std::string raw(const std::string& file, const std::string& other);

 private:
  using Json = nlohmann::ordered_json;

  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  bool one_in(size_t n) { return below(n) == 0; }
  std::string bytes(std::string text);
  Json value();
  Json changed_number(const Json& number);
  void edit(Json& tree, const Json& other);
  std::string nested(std::string text);
  std::string member_twice(std::string text, const Json& tree);

  std::mt19937_64 random_;
};

/// The 8 bytes that a safetensors file begins with.
std::string length_bytes(uint64_t length);

}  // namespace shardwise::fuzz
