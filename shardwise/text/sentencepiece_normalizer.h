// The normalization that a SentencePiece model applies to text before it encodes it.
#pragma once
#include <string>
#include <string_view>

#include "shardwise/text/charsmap.h"
#include "shardwise/text/piece_trie.h"
#include "shardwise/text/sentencepiece_model.h"

namespace shardwise::text {

/// Applies a model's rules, its treatment of spaces, and the escape of spaces as U+2581. User-defined pieces
/// stay as they are.
class SentencePieceNormalizer {
 public:
  /// Keeps references to `model` and `user_defined`. Errors: those of Charsmap.
  SentencePieceNormalizer(const SentencePieceModel& model, const PieceTrie& user_defined,
                          const std::string& where);

  /// Normalizes `text`, which must be valid UTF-8. Errors: those of GrowthLimit.
  std::string normalize(std::string_view text) const;

 private:
  Charsmap::Match prefix_at(std::string_view text, size_t at) const;
  void append(std::string_view text, std::string& out) const;

  const SentencePieceModel& model_;
  const PieceTrie& user_defined_;
  Charsmap charsmap_;
  std::string_view space_;  // how a space is spelled
};

}  // namespace shardwise::text
