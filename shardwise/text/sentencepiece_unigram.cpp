#include <algorithm>
#include <limits>

#include "shardwise/text/sentencepiece_encoder.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

constexpr float kUnknownPenalty = 10;

std::vector<std::pair<std::string_view, uint32_t>> usable_pieces(const SentencePieceModel& model) {
  std::vector<std::pair<std::string_view, uint32_t>> usable;
  for (uint32_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.type == Piece::Type::normal || piece.type == Piece::Type::user_defined)
      usable.emplace_back(piece.text, id);
  }
  return usable;
}

}  // namespace

SentencePieceUnigram::SentencePieceUnigram(const SentencePieceModel& model)
    : model_(model), trie_(usable_pieces(model)) {
  float lowest = std::numeric_limits<float>::max();
  highest_ = std::numeric_limits<float>::min();  // FLT_MIN, as in SentencePiece
  for (const Piece& piece : model.pieces) {
    if (piece.type != Piece::Type::normal) continue;
    lowest = std::min(lowest, piece.score);
    highest_ = std::max(highest_, piece.score);
  }
  unknown_ = lowest - kUnknownPenalty;
}

void SentencePieceUnigram::encode(std::string_view text, std::vector<int64_t>& ids) {
  steps_.assign(text.size() + 1, {});
  for (size_t begin = 0; begin < text.size(); begin += utf8_unit(text, begin).length)
    extend(text, static_cast<uint32_t>(begin));
  append_best(text, ids);
}

// Sums of a user-defined piece's score are compared in double precision, all others exactly as floats.
void SentencePieceUnigram::extend(std::string_view text, uint32_t begin) {
  const float so_far = steps_[begin].score;
  const auto improve = [&](size_t end, double score, uint32_t id) {
    Step& step = steps_[end];
    if (step.id != PieceTrie::kNone && score <= step.score) return;
    step = {id, static_cast<float>(score), begin};
  };
  const size_t character = utf8_unit(text, begin).length;
  bool is_known = false;
  uint32_t node = PieceTrie::kRoot;
  for (size_t end = begin; end < text.size();) {
    node = trie_.child(node, text[end++]);
    if (node == PieceTrie::kNone) break;
    const uint32_t id = trie_.id(node);
    if (id == PieceTrie::kNone) continue;
    const Piece& piece = model_.pieces[id];
    const auto length = static_cast<float>(end - begin);
    // A user-defined piece wins over all others.
    const double score =
        piece.type == Piece::Type::user_defined ? length * highest_ - 0.1 : double{piece.score};
    improve(end, score + so_far, id);
    is_known = is_known || end - begin == character;
  }
  if (!is_known) improve(begin + character, unknown_ + so_far, model_.unk_id);
}

void SentencePieceUnigram::append_best(std::string_view text, std::vector<int64_t>& ids) const {
  std::vector<uint32_t> ends;
  for (auto end = static_cast<uint32_t>(text.size()); end > 0; end = steps_[end].begin) ends.push_back(end);
  std::vector<uint32_t> unknown;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Step& step = steps_[*end];
    if (step.id != model_.unk_id) {
      ids.push_back(step.id);
      continue;
    }
    unknown.clear();
    model_.append_unknown(text.substr(step.begin, *end - step.begin), unknown);
    ids.insert(ids.end(), unknown.begin(), unknown.end());
  }
}

}  // namespace shardwise::text
