#include "shardwise/comm/gather_values.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace shardwise::comm::gather_values_test {
namespace {

using testing::on_ranks;

TEST(GatherValues, GathersStructsAndVectors) {
  struct Statistics {
    int64_t rank;
    double half;
  };
  on_ranks(3, [](const Group& group) {
    const std::vector<Statistics> all = gather_values(Statistics{group.rank(), group.rank() / 2.0}, group);
    ASSERT_EQ(all.size(), 3u);
    for (const int rank : {0, 1, 2}) {
      EXPECT_EQ(all[rank].rank, rank);
      EXPECT_EQ(all[rank].half, rank / 2.0);
    }
    const std::vector<int> local{group.rank(), -group.rank()};
    EXPECT_EQ(gather_values(local, group), (std::vector<int>{0, 0, 1, -1, 2, -2}));
  });
}

TEST(FirstText, IsTheTextOfTheLowestRankWithANonEmptyOne) {
  on_ranks(4, [](const Group& group) {
    const std::string local =
        group.rank() % 2 == 0 ? "" : std::string(100 * group.rank(), 'a' + group.rank());
    EXPECT_EQ(first_text(local, group), std::string(100, 'b'));
    EXPECT_EQ(first_text("", group), "");
  });
  EXPECT_EQ(first_text("alone", Group()), "alone");
}

}  // namespace
}  // namespace shardwise::comm::gather_values_test
