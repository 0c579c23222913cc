// The normalization rules that SentencePiece compiles into a tokenizer.model: strings and what replaces them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::text {

/// The rules of a precompiled_charsmap: a double-array trie in the format of Darts-clone, whose values are
/// positions in a list of NUL-terminated replacements. Untrusted bytes: the array may have cycles, so a
/// search reads at most kMaxPieceBytes of the text.
class Charsmap {
 public:
  /// Reads the rules; no bytes are no rules. Throws c10::ValueError beginning with `where` if the parts have
  /// other sizes than stated, or if a replacement is not UTF-8 or longer than kMaxPieceBytes.
  Charsmap(std::string_view bytes, const std::string& where);

  struct Match {
    size_t length;  // bytes of text, at least 1
    std::string_view replacement;
  };
  /// Returns the longest rule whose string begins at `at` and has at most kMaxPieceBytes. A rule that points
  /// outside the replacements does not match.
  std::optional<Match> longest_at(std::string_view text, size_t at) const;

 private:
  uint32_t unit(uint64_t index) const { return index < units_.size() ? units_[index] : 0; }

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace shardwise::text
