// The contents of a tokenizer.model (sentencepiece_model.proto of SentencePiece).
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shardwise::text {

/// A token of the vocabulary; its id is its position.
struct Piece {
  enum class Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  std::string text;
  float score = 0;  // unigram: log probability; BPE: the pair with the highest score is merged first
  Type type = Type::normal;

  /// Returns whether text is encoded to it, or merged through it; no text is to any other.
  bool is_text() const { return type == Type::normal || type == Type::user_defined || type == Type::unused; }
};

struct SentencePieceModel {
  enum class Algorithm { unigram = 1, bpe = 2 };

  std::vector<Piece> pieces;
  Algorithm algorithm = Algorithm::unigram;
  bool has_byte_fallback = false;        // an unknown character is encoded to the pieces of its bytes
  bool treats_space_as_suffix = false;   // words are "word▁" instead of "▁word"
  bool adds_space = true;                // to the beginning of the text, or to its end if it is a suffix
  bool removes_extra_spaces = true;      // at both ends, and all but one of a run
  bool escapes_spaces = true;            // ' ' is spelled U+2581
  std::string charsmap;                  // the compiled rules of Charsmap
  std::string unk_surface = " \u2047 ";  // the text to which the unknown piece is decoded
  std::string bos = "<s>", eos = "</s>", pad = "<pad>";

  // Derived from the pieces.
  std::unordered_map<std::string_view, uint32_t> ids;  // keys are views of `pieces`
  uint32_t unk_id = 0;
  std::array<uint32_t, 256> byte_ids{};  // if has_byte_fallback

  SentencePieceModel() = default;
  SentencePieceModel(SentencePieceModel&&) = default;  // moving a vector keeps the views valid
  SentencePieceModel(const SentencePieceModel&) = delete;

  std::optional<uint32_t> id_of(std::string_view text) const;
  /// Appends the ids of text that no piece spells.
  void append_unknown(std::string_view text, std::vector<uint32_t>& symbols) const;
};

/// The longest piece, and the longest replacement of a normalization rule.
inline constexpr size_t kMaxPieceBytes = 1024;

/// Reads a tokenizer.model of at most 64 MiB. Throws c10::ValueError naming the file and the rule if it is
/// damaged, if a piece is empty, longer than kMaxPieceBytes, not UTF-8 or there twice, or if it uses a
/// feature other than unigram and BPE models (word and character models, a denormalizer). self_test_data is
/// skipped.
SentencePieceModel read_sentencepiece_model(const std::string& path);

}  // namespace shardwise::text
