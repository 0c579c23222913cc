// Partitions of a dim over ranks: even, in full units, each element exactly once, for any size.
#include "shardwise/base/split.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>
#include <limits>
#include <vector>

namespace shardwise::base::split_test {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

TEST(SplitEven, GivesTheRemainderToTheFirstRanks) {
  const Split split = Split::even("x", 35, 3, /*granule=*/5);  // seven units: 3, 2, 2
  EXPECT_EQ(split.range(0), (Range{0, 15}));
  EXPECT_EQ(split.range(1), (Range{15, 25}));
  EXPECT_EQ(split.range(2), (Range{25, 35}));
  EXPECT_TRUE(split.is_partition());
  EXPECT_FALSE(split.is_uniform());
  EXPECT_EQ(split.largest(), 15);
}

TEST(SplitEven, AllowsAnIncompleteLastUnitAndEmptyRanks) {
  const Split split = Split::even("x", 7, 4, /*granule=*/3);
  EXPECT_EQ(split.range(0), (Range{0, 3}));
  EXPECT_EQ(split.range(2), (Range{6, 7}));
  EXPECT_TRUE(split.range(3).empty());
  EXPECT_TRUE(Split::even("x", 0, 2).range(0).empty());
}

TEST(SplitEven, HandlesGroupsThatDoNotDivideEvenly) {
  const Split ffn = Split::even("ffn", 29568, 2, /*granule=*/128);  // 231 groups
  EXPECT_EQ(ffn.range(0), (Range{0, 116 * 128}));
  EXPECT_EQ(ffn.range(1), (Range{116 * 128, 231 * 128}));
  const Split groups = Split::blocks_of("groups", ffn, /*unit=*/1, /*block=*/128);
  EXPECT_EQ(groups.size(), 231);
  EXPECT_EQ(groups.range(1), (Range{116, 231}));
  EXPECT_TRUE(groups.is_partition());
}

/// Returns the memory of this process that is in use now.
int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Every tensor of a model keeps splits: with ranges of its own, a config of 10,000 layers took tens of GB.
TEST(SplitEven, CopiesShareTheRanges) {
  const Split split = Split::even("heads", 20000, 20000);
  const int64_t before = resident_bytes();
  const std::vector<Split> copies(1000, split);  // their ranges are 320 MB
  EXPECT_EQ(copies.back().range(19999), (Range{19999, 20000}));
  EXPECT_LT(resident_bytes() - before, int64_t{32} << 20);
}

TEST(SplitBlocks, StraddlingBlocksAreReplicatedAndOwnedOnce) {
  const Split heads = Split::even("heads", 5, 3);                // 2, 2, 1
  const Split blocks = Split::blocks_of("blocks", heads, 6, 8);  // of 30 elements: 0–12, 12–24, 24–30
  EXPECT_EQ(blocks.size(), 4);
  EXPECT_EQ(blocks.range(0), (Range{0, 2}));
  EXPECT_EQ(blocks.range(1), (Range{1, 3}));
  EXPECT_EQ(blocks.range(2), (Range{3, 4}));
  EXPECT_EQ(blocks.owned(1), (Range{2, 3}));
  EXPECT_FALSE(blocks.is_partition());
}

TEST(SplitBlocks, EmptyShardHasNoBlocks) {
  const Split columns = Split::even("x", 3, 4);
  EXPECT_TRUE(Split::blocks_of("blocks", columns, 1, 8).range(3).empty());
  EXPECT_EQ(Split::blocks_of("blocks", columns, 1, 8).range(2), (Range{0, 1}));
  EXPECT_THROW(Split::blocks_of("blocks", columns, 1, 0), c10::ValueError);
}

TEST(SplitEven, PartitionsEverySizeEvenly) {
  for (int64_t size = 0; size < 40; ++size) {
    for (const int ranks : {1, 2, 3, 5}) {
      for (const int64_t granule : {1, 2, 7}) {
        const Split split = Split::even("x", size, ranks, granule);
        int64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(split.range(rank).begin, next);
          EXPECT_TRUE(split.range(rank).begin % granule == 0 || split.range(rank).empty());
          EXPECT_GE(split.range(0).size() + granule, split.range(rank).size());
          next = split.range(rank).end;
        }
        EXPECT_EQ(next, size);
      }
    }
  }
}

TEST(SplitEven, DoesNotOverflowForTheLargestSizes) {
  for (const int64_t granule : {int64_t{1}, int64_t{5}, kLargest}) {
    const Split split = Split::even("x", kLargest, 2, granule);
    EXPECT_EQ(split.range(0).begin, 0);
    EXPECT_EQ(split.range(0).end, split.range(1).begin);
    EXPECT_EQ(split.range(1).end, kLargest);
  }
  EXPECT_EQ(Split::even("x", kLargest, 2).range(0).end, kLargest / 2 + 1);
}

}  // namespace
}  // namespace shardwise::base::split_test
