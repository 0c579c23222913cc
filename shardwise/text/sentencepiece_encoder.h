// The two algorithms by which a SentencePiece model divides normalized text into pieces.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "shardwise/text/piece_trie.h"
#include "shardwise/text/sentencepiece_model.h"
#include "shardwise/text/word_cache.h"

namespace shardwise::text {

/// Encodes normalized text. Not thread-safe. Text that no piece spells becomes the pieces of its bytes, or
/// one unknown piece for each character.
class SentencePieceEncoder {
 public:
  virtual ~SentencePieceEncoder() = default;
  virtual void encode(std::string_view text, std::vector<int64_t>& ids) = 0;
};

/// BPE (Sennrich et al., arXiv 1508.07909): merges the two neighbors whose concatenation is the piece with
/// the highest score, the leftmost of equals, until none is a piece. O(n log n) for n characters; the ids of
/// words are cached if no piece spans words.
class SentencePieceBpe final : public SentencePieceEncoder {
 public:
  /// Keeps references to both.
  SentencePieceBpe(const SentencePieceModel& model, const PieceTrie& user_defined);
  void encode(std::string_view text, std::vector<int64_t>& ids) override;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Symbol {
    uint32_t begin, length;  // length 0: merged into the previous symbol
    uint32_t previous, next;
    bool is_fixed;  // a user-defined piece, which is not merged
  };
  struct Candidate {
    float score;
    uint32_t left, right, length;
    bool operator<(const Candidate& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  void merge(std::string_view text);
  void divide(std::string_view text);
  void consider(std::string_view text, uint32_t left, uint32_t right);
  void append_piece(std::string_view piece);

  const SentencePieceModel& model_;
  const PieceTrie& user_defined_;
  bool splits_at_metaspace_ = true;
  WordCache cache_;
  std::unordered_map<std::string_view, uint32_t> parts_of_unused_;  // the length of the left part

  // Buffers reused between calls.
  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;  // a heap
  std::vector<uint32_t> ids_;
};

/// The unigram language model (Kudo, arXiv 1804.10959): the pieces with the highest sum of scores, by the
/// Viterbi algorithm, with scores and ties as in SentencePiece 0.1.97 to 0.2.0. O(n L) for n bytes and pieces
/// of at most L bytes.
class SentencePieceUnigram final : public SentencePieceEncoder {
 public:
  /// Keeps a reference to `model`.
  explicit SentencePieceUnigram(const SentencePieceModel& model);
  void encode(std::string_view text, std::vector<int64_t>& ids) override;

 private:
  /// The last piece of the best division of the text up to a position.
  struct Step {
    uint32_t id = PieceTrie::kNone;
    float score = 0;     // of all pieces so far
    uint32_t begin = 0;  // of the piece
  };
  void extend(std::string_view text, uint32_t begin);
  void append_best(std::string_view text, std::vector<int64_t>& ids) const;

  const SentencePieceModel& model_;
  PieceTrie trie_;
  float highest_, unknown_;  // scores: of the normal pieces, and of an unknown character
  std::vector<Step> steps_;  // by end; a buffer reused between calls
};

}  // namespace shardwise::text
