// Byte-pair encoding: merges the symbols of a word pair by pair, the pair of lowest merge rank first, the
// leftmost among equal pairs.
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

/// The rank of a merge and the token id that it produces. kNone: the pair is not mergeable.
struct Merge {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t rank = kNone, id = 0;
};

/// A hash table from pairs of token ids to merges, with open addressing.
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

/// The BPE `model` of tokenizer.json. Not thread-safe.
///
/// Cost: for a word of n symbols O(n^2) if it is short (scans for the best pair after every merge), else
/// O(n log n) (a heap of pairs). Encoded words are cached.
class Bpe {
 public:
  /// Throws c10::ValueError naming the field and value if an option is not supported, an id occurs twice, a
  /// merge has unknown tokens, or the vocabulary lacks a token for a symbol that text can contain.
  Bpe(const JsonPart& json, bool is_byte_level);

  /// Appends the ids of `word`, which must be nonempty UTF-8.
  void encode(std::string_view word, std::vector<int64_t>& ids);

  const std::unordered_map<std::string, uint32_t>& vocabulary() const { return ids_; }
  std::optional<uint32_t> unk() const { return unk_; }

 private:
  void read_vocabulary(const JsonPart& json);
  void read_merges(const JsonPart& json);
  void read_symbols(const JsonPart& json);
  void read_bytes(const JsonPart& json, const std::function<std::string(int)>& token_of);
  uint32_t id_of(const std::string& token, const std::string& label) const;

  void encode_segment(std::string_view segment, std::vector<int64_t>& ids);
  void append_symbols(std::string_view segment);
  void merge_symbols();
  void merge_by_scanning();
  void merge_by_heap();

  bool is_byte_level_, ignores_merges_, has_byte_fallback_, fuses_unk_;
  /// No token contains the start of a run of metaspaces, except at its own start.
  bool splits_at_metaspace_ = false;
  std::optional<uint32_t> unk_;
  std::unordered_map<std::string, uint32_t> ids_;           // keys as in tokenizer.json
  std::unordered_map<std::string, uint32_t> ids_of_words_;  // keys as in text; used with ignore_merges
  std::unordered_map<char32_t, uint32_t> ids_of_characters_;
  std::array<uint32_t, 256> ids_of_bytes_{};
  MergeTable merges_{0};
  WordCache cache_;

  // Buffers reused between calls.
  std::vector<uint32_t> symbols_;
  std::vector<Merge> pairs_;
};

}  // namespace shardwise::text
