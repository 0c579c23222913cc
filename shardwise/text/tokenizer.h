// Text to token ids and back.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::text {

/// Tokenizer `bytes`: a token is a byte, ids 0 to 255, no specials.
class BytesTokenizer {
 public:
  static constexpr int64_t kVocabSize = 256;

  std::vector<int64_t> encode(std::string_view text) const;
  /// Errors: c10::ValueError for an id outside 0 to 255.
  std::string decode(const std::vector<int64_t>& ids) const;
};

}  // namespace shardwise::text
