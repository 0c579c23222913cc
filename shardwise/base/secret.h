// The secret by which the ranks of a job recognize each other.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::base {

/// 128 bits; all zeros if the job has no secret. Plain bytes, which PeerInfo carries over a store or MPI.
struct Secret {
  std::array<uint64_t, 2> words{};  // the first has the first 16 digits of text()

  /// Errors: those of random_bits.
  static Secret random();
  /// Reads 32 hexadecimal digits; returns nullopt for any other text.
  static std::optional<Secret> parse(std::string_view text);
  /// Returns 32 hexadecimal digits.
  std::string text() const;
  /// The time does not depend on the values.
  bool operator==(const Secret& other) const {
    return ((words[0] ^ other.words[0]) | (words[1] ^ other.words[1])) == 0;
  }
};

}  // namespace shardwise::base
