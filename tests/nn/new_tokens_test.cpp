// What layers need of a few new tokens of sequences with caches.
#include "shardwise/nn/new_tokens.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/support/error_text.h"

namespace shardwise::nn {
namespace {

Cache cache_of(int64_t capacity, int64_t length) {
  Cache cache = Cache::empty(/*layers=*/{0, 2}, /*kv_heads=*/1, /*head_dim=*/4, capacity, at::kFloat);
  cache.length = length;
  return cache;
}

at::Tensor ids(int64_t n) {
  return at::arange(n, at::kLong).unsqueeze(1);
}

TEST(NewTokens, GiveEachTokenItsPositionAndTheCacheBeforeIt) {
  Cache first = cache_of(8, 3), second = cache_of(5, 0);
  NewTokens tokens(/*n=*/3, /*capacity=*/8, at::kCPU);
  tokens.set(ids(3), std::vector<CachedRows>{{&first, 2}, {&second, 1}});
  EXPECT_EQ(tokens.positions(), (std::vector<int64_t>{3, 4, 0}));
  EXPECT_TRUE(tokens.position_ids().equal(at::tensor(tokens.positions(), at::kLong)));
  EXPECT_TRUE(tokens.ids().equal(ids(3)));
  EXPECT_FALSE(tokens.table(0).on_device.defined());
  const Cache* const caches[] = {&first, &first, &second};
  for (int64_t layer = 0; layer < 2; ++layer) {
    ASSERT_EQ(tokens.caches(layer).size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      const auto& [keys, values, length] = tokens.caches(layer)[i];
      EXPECT_EQ(length, tokens.positions()[i]);
      EXPECT_TRUE(keys.rows.is_same(caches[i]->layers[size_t(layer)].keys.rows));
      EXPECT_TRUE(values.rows.is_same(caches[i]->layers[size_t(layer)].values.rows));
    }
  }
}

TEST(NewTokens, RefuseWhatDoesNotFit) {
  Cache cache = cache_of(40, 3);
  const auto error_of = [&](int64_t n, int64_t id_count, int64_t rows, int64_t capacity) {
    return test::error_text<c10::ValueError>([&] {
      NewTokens(n, capacity, at::kCPU).set(ids(id_count), std::vector<CachedRows>{{&cache, rows}});
    });
  };
  EXPECT_EQ(error_of(2, 2, 1, 40), "new tokens: must be 2; got 2 ids and 1 rows");
  EXPECT_EQ(error_of(1, 2, 1, 40), "new tokens: must be 1; got 2 ids and 1 rows");
  EXPECT_EQ(
      error_of(17, 17, 17, 40),
      "new tokens: a sequence must have at most 16 rows and a cache for at most 40 tokens; got 17 rows and "
      "a cache for 40");
  EXPECT_EQ(
      error_of(1, 1, 1, 39),
      "new tokens: a sequence must have at most 16 rows and a cache for at most 39 tokens; got 1 rows and a "
      "cache for 40");
}

}  // namespace
}  // namespace shardwise::nn
