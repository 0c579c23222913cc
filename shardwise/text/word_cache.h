// A cache of the token ids of words.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::text {

/// A hash table from words of at most kMaxWordBytes bytes to their token ids. Open addressing over entries
/// that point into two arrays, so a hit costs no allocation. A full cache is cleared.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 128;
  static constexpr size_t kMaxWords = size_t{1} << 18;

  WordCache();

  static uint64_t hash_of(std::string_view word);
  /// Returns the ids of `word`, valid until the next insert; a span with null data if it is not cached.
  std::span<const uint32_t> find(std::string_view word, uint64_t hash) const;
  /// Appends the ids of `word`: the cached ones, or else those that encode() returns, which are then cached.
  template <typename Encode>
  void append(std::string_view word, std::vector<int64_t>& ids, Encode&& encode) {
    const bool is_cached = word.size() <= kMaxWordBytes;
    const uint64_t hash = is_cached ? hash_of(word) : 0;
    std::span<const uint32_t> found = is_cached ? find(word, hash) : std::span<const uint32_t>();
    if (!found.data()) {
      found = encode();
      if (is_cached) insert(word, hash, found);
    }
    ids.insert(ids.end(), found.begin(), found.end());
  }
  /// Inserts a word that is not in the cache, with at least one id.
  void insert(std::string_view word, uint64_t hash, std::span<const uint32_t> ids);

 private:
  struct Entry {
    uint64_t hash;
    uint32_t word_at, ids_at;
    uint16_t length, count;  // count 0: an unused entry
  };
  void clear();
  void grow();
  size_t slot_of(std::string_view word, uint64_t hash) const;

  std::vector<Entry> entries_;  // a power of two in number, at most half used
  size_t used_ = 0;
  std::string words_;
  std::vector<uint32_t> ids_;
};

}  // namespace shardwise::text
