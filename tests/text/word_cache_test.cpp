#include "shardwise/text/word_cache.h"

#include <gtest/gtest.h>

namespace shardwise::text::word_cache_test {
namespace {

std::string word_of(uint32_t number) {
  return "word " + std::to_string(number);
}

/// Returns one to three ids that identify the number.
std::vector<uint32_t> ids_of(uint32_t number) {
  return std::vector<uint32_t>(1 + number % 3, number);
}

void insert(WordCache& cache, uint32_t number) {
  const std::string word = word_of(number);
  cache.insert(word, WordCache::hash_of(word), ids_of(number));
}

std::vector<uint32_t> found(const WordCache& cache, uint32_t number) {
  const std::string word = word_of(number);
  const auto ids = cache.find(word, WordCache::hash_of(word));
  return {ids.begin(), ids.end()};
}

TEST(WordCache, KeepsEveryWordWhileItGrows) {
  WordCache cache;
  for (uint32_t i = 0; i < WordCache::kMaxWords; ++i) {
    ASSERT_TRUE(found(cache, i).empty()) << i;
    insert(cache, i);
    ASSERT_EQ(found(cache, i), ids_of(i));
  }
  for (uint32_t i = 0; i < WordCache::kMaxWords; ++i) ASSERT_EQ(found(cache, i), ids_of(i));
}

TEST(WordCache, IsClearedWhenFull) {
  WordCache cache;
  const uint32_t most = WordCache::kMaxWords;
  for (uint32_t i = 0; i <= most; ++i) insert(cache, i);
  EXPECT_EQ(found(cache, most), ids_of(most));
  for (uint32_t i = 0; i < most; ++i) ASSERT_TRUE(found(cache, i).empty()) << i;
  for (uint32_t i = 0; i < most - 1; ++i) insert(cache, i);
  for (uint32_t i = 0; i < most - 1; ++i) ASSERT_EQ(found(cache, i), ids_of(i));
  EXPECT_EQ(found(cache, most), ids_of(most));
}

TEST(WordCache, DistinguishesWordsOfEqualHash) {
  WordCache cache;
  const std::vector<uint32_t> one{1}, two{2, 2};
  cache.insert("one", /*hash=*/7, one);
  EXPECT_EQ(cache.find("two", 7).data(), nullptr);
  cache.insert("two", 7, two);
  EXPECT_EQ(cache.find("one", 7)[0], 1u);
  EXPECT_EQ(cache.find("two", 7).size(), 2u);
}

}  // namespace
}  // namespace shardwise::text::word_cache_test
