// Damaged normalization rules. tests/python/sentencepiece_test.py compares whole models with SentencePiece.
#include "shardwise/text/charsmap.h"

#include <gtest/gtest.h>

#include <cstring>

#include "shardwise/text/sentencepiece_model.h"

namespace shardwise::text::charsmap_test {
namespace {

/// Returns the bytes of a charsmap whose one replacement is "b".
std::string charsmap_of(const std::vector<uint32_t>& units) {
  const auto trie_bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::string bytes(sizeof(uint32_t) + trie_bytes, '\0');
  std::memcpy(bytes.data(), &trie_bytes, sizeof(trie_bytes));
  std::memcpy(bytes.data() + sizeof(trie_bytes), units.data(), trie_bytes);
  return bytes + "b";
}

// The only node has itself as its child for 'a', and every string of them is a rule: a search could read the
// rest of the text at every character.
TEST(Charsmap, SearchesAlongACycleEnd) {
  std::vector<uint32_t> units(128, 0);
  units['a'] = 'a' | 1 << 8 | uint32_t{'a'} << 10;  // ends a rule, whose value is unit 0
  const Charsmap charsmap(charsmap_of(units), "test: ");
  const std::string text(100000, 'a');
  for (const size_t at : {size_t{0}, size_t{5}, text.size() - kMaxPieceBytes}) {
    const auto match = charsmap.longest_at(text, at);
    ASSERT_TRUE(match);
    EXPECT_EQ(match->length, kMaxPieceBytes);
    EXPECT_EQ(match->replacement, "b");
  }
  EXPECT_EQ(charsmap.longest_at(text, text.size() - 3)->length, 3u);
}

}  // namespace
}  // namespace shardwise::text::charsmap_test
