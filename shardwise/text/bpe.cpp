#include "shardwise/text/bpe.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

#include "shardwise/text/metaspace.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
constexpr uint64_t kFree = UINT64_MAX;
constexpr size_t kMaxScannedSymbols = 64;  // symbols; measured: a heap is faster from about 100 on

}  // namespace

MergeTable::MergeTable(size_t count) {
  const size_t size = std::bit_ceil(2 * count + 2);
  entries_.assign(size, {kFree, {}});
  shift_ = 64 - std::countr_zero(size);
}

size_t MergeTable::slot_of(uint64_t pair) const {
  const size_t mask = entries_.size() - 1;
  size_t i = (pair * kOdd) >> shift_;
  while (entries_[i].pair != pair && entries_[i].pair != kFree) i = (i + 1) & mask;
  return i;
}

void MergeTable::set(uint32_t left, uint32_t right, Merge merge) {
  const uint64_t pair = uint64_t{left} << 32 | right;
  entries_[slot_of(pair)] = {pair, merge};
}

Merge MergeTable::find(uint32_t left, uint32_t right) const {
  return entries_[slot_of(uint64_t{left} << 32 | right)].merge;
}

void Bpe::encode(std::string_view word, std::vector<int64_t>& ids) {
  if (ignores_merges_) {
    const auto found = ids_of_words_.find(std::string(word));
    if (found != ids_of_words_.end()) return ids.push_back(found->second);
  }
  if (!splits_at_metaspace_) return encode_segment(word, ids);
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = end_of_segment(word, begin);
    encode_segment(word.substr(begin, end - begin), ids);
    begin = end;
  }
}

void Bpe::encode_segment(std::string_view segment, std::vector<int64_t>& ids) {
  cache_.append(segment, ids, [&]() -> std::span<const uint32_t> {
    symbols_.clear();
    append_symbols(segment);
    merge_symbols();
    return symbols_;
  });
}

void Bpe::append_symbols(std::string_view segment) {
  if (is_byte_level_) {
    for (const char byte : segment) symbols_.push_back(ids_of_bytes_[static_cast<uint8_t>(byte)]);
    return;
  }
  bool follows_unk = false;
  for (size_t at = 0; at < segment.size();) {
    const uint32_t length = utf8_unit(segment, at).length;
    const auto found = ids_of_characters_.find(code_point(segment, at));
    const bool is_known = found != ids_of_characters_.end();
    if (is_known) {
      symbols_.push_back(found->second);
    } else if (has_byte_fallback_) {
      for (const char byte : segment.substr(at, length))
        symbols_.push_back(ids_of_bytes_[static_cast<uint8_t>(byte)]);
    } else if (!(fuses_unk_ && follows_unk)) {
      symbols_.push_back(*unk_);
    }
    follows_unk = !is_known;
    at += length;
  }
}

void Bpe::merge_symbols() {
  if (symbols_.size() < 2) return;
  pairs_.clear();
  for (size_t i = 0; i + 1 < symbols_.size(); ++i)
    pairs_.push_back(merges_.find(symbols_[i], symbols_[i + 1]));
  if (symbols_.size() <= kMaxScannedSymbols) {
    merge_by_scanning();
  } else {
    merge_by_heap();
  }
}

void Bpe::merge_by_scanning() {
  const auto is_earlier = [](const Merge& a, const Merge& b) { return a.rank < b.rank; };
  while (!pairs_.empty()) {
    const auto best = std::min_element(pairs_.begin(), pairs_.end(), is_earlier);
    if (best->rank == Merge::kNone) return;
    const auto at = static_cast<size_t>(best - pairs_.begin());
    symbols_[at] = best->id;
    symbols_.erase(symbols_.begin() + static_cast<ptrdiff_t>(at) + 1);
    pairs_.erase(best);
    if (at < pairs_.size()) pairs_[at] = merges_.find(symbols_[at], symbols_[at + 1]);
    if (at > 0) pairs_[at - 1] = merges_.find(symbols_[at - 1], symbols_[at]);
  }
}

/// Symbols keep their positions; merged ones leave gaps, which `next` and `previous` skip. A heap entry is
/// stale if the pair at its position has another rank.
void Bpe::merge_by_heap() {
  const auto count = static_cast<uint32_t>(symbols_.size());
  std::vector<uint32_t> next(count), previous(count);
  std::vector<uint64_t> heap;  // rank, position
  heap.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1, previous[i] = i - 1;
    if (i + 1 < count && pairs_[i].rank != Merge::kNone) heap.push_back(uint64_t{pairs_[i].rank} << 32 | i);
  }
  pairs_.push_back({});  // the last symbol starts no pair
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update_pair = [&](uint32_t at) {
    pairs_[at] = next[at] < count ? merges_.find(symbols_[at], symbols_[next[at]]) : Merge{};
    if (pairs_[at].rank == Merge::kNone) return;
    heap.push_back(uint64_t{pairs_[at].rank} << 32 | at);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<uint32_t>(heap.back() >> 32), at = static_cast<uint32_t>(heap.back());
    heap.pop_back();
    if (pairs_[at].rank != rank) continue;
    const uint32_t merged = next[at];
    symbols_[at] = pairs_[at].id;
    pairs_[merged] = {};
    next[at] = next[merged];
    if (next[at] < count) previous[next[at]] = at;
    update_pair(at);
    if (at > 0) update_pair(previous[at]);
  }
  size_t count_left = 0;
  for (uint32_t i = 0; i < count; i = next[i]) symbols_[count_left++] = symbols_[i];
  symbols_.resize(count_left);
}

}  // namespace shardwise::text
