// The ids of words that have been met before.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::text {

/// Words of at most kLongest bytes and their ids. Open addressing over entries that point into two arrays,
/// so that a word met again costs no allocation. Forgets everything when it is full.
class WordCache {
 public:
  static constexpr size_t kLongest = 128;
  static constexpr size_t kMostWords = size_t{1} << 18;

  WordCache();

  static uint64_t hash_of(std::string_view word);
  /// The ids of `word`; none is nullptr data. Valid until the next insert.
  std::span<const uint32_t> find(std::string_view word, uint64_t hash) const;
  /// A word that is not there, and its ids, of which there is at least one.
  void insert(std::string_view word, uint64_t hash, std::span<const uint32_t> ids);

 private:
  struct Entry {
    uint64_t hash;
    uint32_t word_at, ids_at;
    uint16_t length, count;  // count 0: free
  };
  void clear();
  void grow();
  size_t slot_of(std::string_view word, uint64_t hash) const;

  std::vector<Entry> entries_;  // a power of two of them, at most half in use
  size_t used_ = 0;
  std::string words_;
  std::vector<uint32_t> ids_;
};

}  // namespace shardwise::text
