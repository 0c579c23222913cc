#include <algorithm>

#include "shardwise/text/metaspace.h"
#include "shardwise/text/sentencepiece_encoder.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {

// A segment can be encoded alone if no piece crosses its ends; which parts an unused piece is divided into
// depends on the text around it.
SentencePieceBpe::SentencePieceBpe(const SentencePieceModel& model, const PieceTrie& user_defined)
    : model_(model), user_defined_(user_defined) {
  for (const Piece& piece : model.pieces) {
    const bool crosses = piece.is_text() && end_of_segment(piece.text, 0) != piece.text.size();
    if (crosses || piece.type == Piece::Type::unused) splits_at_metaspace_ = false;
  }
}

void SentencePieceBpe::encode(std::string_view text, std::vector<int64_t>& ids) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = splits_at_metaspace_ ? end_of_segment(text, begin) : text.size();
    const std::string_view segment = text.substr(begin, end - begin);
    const auto merged = [&]() -> std::span<const uint32_t> {
      merge(segment);
      return ids_;
    };
    if (splits_at_metaspace_) {
      cache_.append(segment, ids, merged);
    } else {
      const auto found = merged();
      ids.insert(ids.end(), found.begin(), found.end());
    }
    begin = end;
  }
}

void SentencePieceBpe::merge(std::string_view text) {
  divide(text);
  candidates_.clear();
  parts_of_unused_.clear();
  for (uint32_t i = 0; i + 1 < symbols_.size(); ++i) consider(text, i, i + 1);
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end());
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    Symbol &left = symbols_[best.left], &right = symbols_[best.right];
    const bool is_stale = left.length == 0 || right.length == 0 || left.length + right.length != best.length;
    if (is_stale) continue;
    left.length = best.length;
    left.next = right.next;
    right.length = 0;
    if (left.next != kNone) symbols_[left.next].previous = best.left;
    consider(text, left.previous, best.left);
    consider(text, best.left, left.next);
  }
  ids_.clear();
  for (uint32_t i = 0; i != kNone; i = symbols_[i].next)
    append_piece(text.substr(symbols_[i].begin, symbols_[i].length));
}

/// Divides `text` into characters and user-defined pieces.
void SentencePieceBpe::divide(std::string_view text) {
  symbols_.clear();
  for (size_t at = 0; at < text.size();) {
    const size_t fixed = user_defined_.longest_at(text, at);
    const size_t length = fixed > 0 ? fixed : utf8_unit(text, at).length;
    const auto index = static_cast<uint32_t>(symbols_.size());
    symbols_.push_back(
        {static_cast<uint32_t>(at), static_cast<uint32_t>(length), index - 1, index + 1, fixed > 0});
    at += length;
  }
  symbols_.front().previous = symbols_.back().next = kNone;
}

void SentencePieceBpe::consider(std::string_view text, uint32_t left, uint32_t right) {
  if (left == kNone || right == kNone || symbols_[left].is_fixed || symbols_[right].is_fixed) return;
  const uint32_t length = symbols_[left].length + symbols_[right].length;
  const std::string_view both = text.substr(symbols_[left].begin, length);
  const auto id = model_.id_of(both);
  if (!id || !model_.pieces[*id].is_text()) return;
  candidates_.push_back({model_.pieces[*id].score, left, right, length});
  std::push_heap(candidates_.begin(), candidates_.end());
  if (model_.pieces[*id].type == Piece::Type::unused) parts_of_unused_[both] = symbols_[left].length;
}

/// Appends the id of a symbol; those of its parts if it is an unused piece, which only merges pass through.
void SentencePieceBpe::append_piece(std::string_view piece) {
  const auto id = model_.id_of(piece);
  if (!id || !model_.pieces[*id].is_text()) return model_.append_unknown(piece, ids_);
  const auto parts =
      model_.pieces[*id].type == Piece::Type::unused ? parts_of_unused_.find(piece) : parts_of_unused_.end();
  if (parts == parts_of_unused_.end()) return ids_.push_back(*id);
  append_piece(piece.substr(0, parts->second));
  append_piece(piece.substr(parts->second));
}

}  // namespace shardwise::text
