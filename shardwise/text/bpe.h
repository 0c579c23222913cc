// Byte-pair encoding: the symbols of a word joined pair by pair, the pair that was learned first going first,
// of equal ones the leftmost.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardwise/text/json_fields.h"
#include "shardwise/text/word_cache.h"

namespace shardwise::text {

/// What a pair becomes and how early it was learned; kNone: it is never joined.
struct Merge {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t rank = kNone, id = 0;
};

/// Pairs of ids -> Merge, by open addressing.
class MergeTable {
 public:
  explicit MergeTable(size_t count);
  void set(uint32_t left, uint32_t right, Merge merge);
  Merge find(uint32_t left, uint32_t right) const;

 private:
  struct Entry {
    uint64_t pair;
    Merge merge;
  };
  size_t slot_of(uint64_t pair) const;

  std::vector<Entry> entries_;
  int shift_;
};

/// The `model` of tokenizer.json where its type is BPE. One thread at a time.
///
/// A word of n symbols is scanned for its best pair after every merge where it is short, O(n^2); a heap of
/// pairs serves longer ones, O(n log n). Words are cached.
class Bpe {
 public:
  /// Errors: c10::ValueError naming field and value: an option that is not computed, ids that are given
  /// twice, a merge of unknown tokens, symbols that text can have and the vocabulary has no token for.
  Bpe(const JsonPart& json, bool is_byte_level);

  /// Appends the ids of `word`, which is UTF-8 and not empty.
  void encode(std::string_view word, std::vector<int64_t>& ids);

  const std::unordered_map<std::string, uint32_t>& vocabulary() const { return ids_; }
  std::optional<uint32_t> unk() const { return unk_; }

 private:
  static constexpr std::string_view kMark = "\xe2\x96\x81";  // U+2581, SentencePiece's blank

  void read_vocabulary(const JsonPart& json);
  void read_merges(const JsonPart& json);
  void read_symbols(const JsonPart& json);
  void read_bytes(const JsonPart& json, const std::function<std::string(int)>& token_of);
  uint32_t id_of(const std::string& token, const std::string& label) const;

  /// Where the part that begins at `begin` ends: before a mark that follows something else.
  static size_t end_of_part(std::string_view text, size_t begin);
  void encode_part(std::string_view part, std::vector<int64_t>& ids);
  void append_symbols(std::string_view part);
  void merge_symbols();
  void merge_by_scanning();
  void merge_by_heap();

  bool is_byte_level_, ignores_merges_, has_byte_fallback_, fuses_unk_;
  bool cuts_at_marks_ = false;  // no token spans the beginning of a run of marks
  std::optional<uint32_t> unk_;
  std::unordered_map<std::string, uint32_t> ids_;           // as tokenizer.json spells tokens
  std::unordered_map<std::string, uint32_t> ids_of_words_;  // as text spells them, where merges are ignored
  std::unordered_map<char32_t, uint32_t> ids_of_characters_;
  std::array<uint32_t, 256> ids_of_bytes_{};
  MergeTable merges_{0};
  WordCache cache_;

  // Room that is used again.
  std::vector<uint32_t> symbols_;
  std::vector<Merge> pairs_;
};

}  // namespace shardwise::text
