// The time of what a forward of inference reads from caches and from memory, by hand.
#include "shardwise/plan/inference_rates.h"

#include <gtest/gtest.h>

#include "tests/plan/read_rates.h"

namespace shardwise::plan::inference_rates_test {
namespace {

Rate constant(double per_second) {
  return Rate({{1, per_second}}, "by hand");
}

/// 8 GB/s up to 1 MB, 2 GB/s from 100 MB.
InferenceRates rates() {
  InferenceRates all = inference_rates(1e9, 2e9, 4e9, 3e9);
  all.reading = Rate({{1e6, 8e9}, {1e8, 2e9}}, "by hand");
  return all;
}

TEST(InferenceRates, MemoryShareFollowsTheTimeOfAByte) {
  EXPECT_EQ(rates().memory_share(1), 0);
  EXPECT_EQ(rates().memory_share(1e6), 0);
  // 5 GB/s: 1/5 is a fifth of the way from 1/8 to 1/2.
  EXPECT_NEAR(rates().memory_share(1e7), 0.2, 1e-12);
  EXPECT_EQ(rates().memory_share(1e8), 1);
  EXPECT_EQ(rates().memory_share(1e12), 1);
}

TEST(InferenceRates, WithoutAFasterCacheAllIsFromMemory) {
  InferenceRates same = rates();
  for (const double of_memory : {8e9, 9e9}) {
    same.reading = Rate({{1e6, 8e9}, {1e8, of_memory}}, "by hand");
    EXPECT_EQ(same.memory_share(1), 1);
  }
  same.reading = constant(8e9);
  EXPECT_EQ(same.memory_share(1), 1);
}

TEST(InferenceRates, TimesAreBetweenThoseOfCacheAndMemory) {
  InferenceRates all = rates();
  all.int8 = {.from_memory = constant(1e9), .from_cache = constant(4e9)};
  all.seconds_per_product = 3;
  EXPECT_DOUBLE_EQ(all.product(8e9, 1, 8, 0), 3 + 2);
  EXPECT_DOUBLE_EQ(all.product(8e9, 1, 8, 1), 3 + 8);
  EXPECT_DOUBLE_EQ(all.product(8e9, 1, 8, 0.5), 3 + 5);
  EXPECT_DOUBLE_EQ(all.product(8e9, 1, 4, 0.5), 3 + 2);  // int4: 4e9 in both places
}

TEST(CachedAttentionRates, TimesAreOnALineOverTheQueriesOfAKey) {
  const CachedAttentionRates rates{
      .one_query = {.from_memory = constant(2e9), .from_cache = constant(4e9)},
      .shared = {.from_memory = constant(1e9), .from_cache = constant(1e9)},
  };
  EXPECT_DOUBLE_EQ(rates.seconds(8e9, 1, 0.5), 3);
  EXPECT_DOUBLE_EQ(rates.seconds(8e9, 4, 0.5), 8);
  EXPECT_DOUBLE_EQ(rates.seconds(8e9, 7, 0.5), 13);
  EXPECT_DOUBLE_EQ(rates.seconds(8e9, 7, 1), 4 + 2 * 4);
}

TEST(CachedAttentionRates, MoreQueriesAreNotFaster) {
  const CachedAttentionRates noisy{
      .one_query = {.from_memory = constant(2e9), .from_cache = constant(2e9)},
      .shared = {.from_memory = constant(4e9), .from_cache = constant(4e9)},
  };
  EXPECT_DOUBLE_EQ(noisy.seconds(8e9, 128, 1), 4);
}

TEST(InferenceRates, ProductsHaveTheRateOfTheirRows) {
  InferenceRates all = rates();
  all.bf16.from_cache = Rate({{1, 1e9}, {4, 3e9}}, "by hand");
  EXPECT_DOUBLE_EQ(all.product(6e9, 1, 16, 0), 6);
  EXPECT_DOUBLE_EQ(all.product(6e9, 2, 16, 0), 3);
  EXPECT_DOUBLE_EQ(all.product(6e9, 4, 16, 0), 2);
}

}  // namespace
}  // namespace shardwise::plan::inference_rates_test
