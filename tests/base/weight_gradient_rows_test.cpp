// Which ranks' rows a weight gradient multiplies together.
#include "shardwise/base/weight_gradient_rows.h"

#include <gtest/gtest.h>

#include <vector>

namespace shardwise::base {
namespace {

using Runs = std::vector<Range>;

Runs runs_of(int64_t length, int ranks, int64_t batch) {
  return weight_gradient_ranks(Split::even("sequence", length, ranks), batch);
}

constexpr int64_t kEnough = kWeightGradientRows;

TEST(WeightGradientRows, RanksWithEnoughRowsAreAlone) {
  EXPECT_EQ(runs_of(kEnough, 1, 1), (Runs{{0, 1}}));
  EXPECT_EQ(runs_of(2 * kEnough, 2, 1), (Runs{{0, 1}, {1, 2}}));
  EXPECT_EQ(runs_of(kEnough, 2, 2), (Runs{{0, 1}, {1, 2}}));
}

TEST(WeightGradientRows, RanksWithFewerRowsAreTogether) {
  EXPECT_EQ(runs_of(2 * kEnough - 2, 2, 1), (Runs{{0, 2}})) << "one row too few each";
  EXPECT_EQ(runs_of(2 * kEnough, 4, 1), (Runs{{0, 2}, {2, 4}}));
  EXPECT_EQ(runs_of(kEnough / 2, 8, 1), (Runs{{0, 8}})) << "never enough";
  EXPECT_EQ(runs_of(3, 8, 1), (Runs{{0, 8}})) << "ranks without a row";
}

TEST(WeightGradientRows, TheLastRanksJoinTheRunBefore) {
  EXPECT_EQ(runs_of(2 * kEnough - 1, 2, 1), (Runs{{0, 2}})) << "one row too few on the second";
  EXPECT_EQ(runs_of(5 * (kEnough / 2), 5, 1), (Runs{{0, 2}, {2, 5}}));
}

TEST(WeightGradientRows, KnowsTheIndicesAndTheLargestRun) {
  const Split sequence = Split::even("sequence", 5 * (kEnough / 2), 5);
  EXPECT_EQ(indices_of(sequence, {2, 5}), (Range{kEnough, 5 * (kEnough / 2)}));
  EXPECT_EQ(largest_weight_gradient_rows(sequence, 1), 3 * (kEnough / 2));
  EXPECT_EQ(largest_weight_gradient_rows(sequence, 2), kEnough);
}

}  // namespace
}  // namespace shardwise::base
