#include "shardwise/text/word_cache.h"

#include <cstring>

namespace shardwise::text {
namespace {

constexpr size_t kFirstEntries = size_t{1} << 12;
constexpr uint64_t kOdd1 = 0x9e3779b97f4a7c15, kOdd2 = 0xd6e8feb86659fd93;

uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a ^ kOdd1) * (b ^ kOdd2);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t load(const char* bytes, size_t count) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, count);
  return word;
}

}  // namespace

WordCache::WordCache() : entries_(kFirstEntries) {}

uint64_t WordCache::hash_of(std::string_view word) {
  uint64_t hash = word.size();
  while (word.size() >= 8) {
    hash = mix(hash, load(word.data(), 8));
    word.remove_prefix(8);
  }
  return mix(hash, load(word.data(), word.size()));
}

/// Returns the index of the word's entry, or of the unused entry for it.
size_t WordCache::slot_of(std::string_view word, uint64_t hash) const {
  const size_t mask = entries_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const Entry& entry = entries_[i];
    if (entry.count == 0) return i;
    const bool is_match = entry.hash == hash && entry.length == word.size() &&
                          std::memcmp(words_.data() + entry.word_at, word.data(), word.size()) == 0;
    if (is_match) return i;
  }
}

std::span<const uint32_t> WordCache::find(std::string_view word, uint64_t hash) const {
  const Entry& entry = entries_[slot_of(word, hash)];
  if (entry.count == 0) return {};
  return {ids_.data() + entry.ids_at, entry.count};
}

void WordCache::insert(std::string_view word, uint64_t hash, std::span<const uint32_t> ids) {
  if (used_ == kMaxWords) clear();
  if (2 * (used_ + 1) > entries_.size()) grow();
  entries_[slot_of(word, hash)] = {hash, static_cast<uint32_t>(words_.size()),
                                   static_cast<uint32_t>(ids_.size()), static_cast<uint16_t>(word.size()),
                                   static_cast<uint16_t>(ids.size())};
  words_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

void WordCache::clear() {
  entries_.assign(kFirstEntries, {});
  words_.clear();
  ids_.clear();
  used_ = 0;
}

void WordCache::grow() {
  std::vector<Entry> old(entries_.size() * 2);
  old.swap(entries_);
  const size_t mask = entries_.size() - 1;
  for (const Entry& entry : old) {
    if (entry.count == 0) continue;
    size_t i = entry.hash & mask;
    while (entries_[i].count > 0) i = (i + 1) & mask;
    entries_[i] = entry;
  }
}

}  // namespace shardwise::text
