#include "shardwise/infer/draft.h"

#include <gtest/gtest.h>

namespace shardwise::infer::draft_test {
namespace {

using Ids = std::vector<int64_t>;

TEST(DraftOf, ContinuesTheLatestOccurrenceOfTheLastTokens) {
  EXPECT_EQ(draft_of(Ids{1, 2, 7, 8, 1, 2, 9, 9, 1, 2}, 2), (Ids{9, 9}));
}

TEST(DraftOf, PrefersTheLongestMatch) {
  //                     four match        only two match
  EXPECT_EQ(draft_of(Ids{5, 6, 1, 2, 7, 0, 1, 2, 9, 5, 6, 1, 2}, 1), (Ids{7}));
  EXPECT_EQ(draft_of(Ids{6, 1, 2, 7, 0, 1, 2, 9, 6, 1, 2}, 1), (Ids{7}));
}

TEST(DraftOf, IsEmptyWithoutAMatchOfTwo) {
  EXPECT_TRUE(draft_of(Ids{1, 2, 3, 4, 2}, 3).empty());
  for (const Ids& text : {Ids{}, Ids{1}, Ids{1, 1}, Ids{1, 2, 3}}) EXPECT_TRUE(draft_of(text, 3).empty());
  EXPECT_TRUE(draft_of(Ids{1, 1, 1, 1}, 0).empty());
}

TEST(DraftOf, RepeatsAPhraseBeyondTheEndOfTheText) {
  EXPECT_EQ(draft_of(Ids{1, 1, 1}, 3), (Ids{1, 1, 1}));
  EXPECT_EQ(draft_of(Ids{1, 2, 3, 1, 2, 3, 1, 2}, 7), (Ids{3, 1, 2, 3, 1, 2, 3}));
}

}  // namespace
}  // namespace shardwise::infer::draft_test
