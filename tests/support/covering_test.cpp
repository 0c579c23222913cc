#include "tests/support/covering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace shardwise::testing::covering_test {
namespace {

// A space with exclusions, one of which is indirect: b 2 and e 1 leave no value of d.
Space sample_space() {
  Space space;
  space.add("a", {"0", "1", "2", "3"});
  space.add("b", {"0", "1", "2"});
  space.add("c", {"0", "1", "2"});
  space.add("d", {"0", "1"});
  space.add("e", {"0", "1"});
  space.add("f", {"0", "1", "2", "3", "4"});
  space.add("g", {"0", "1"});
  space.add("h", {"0", "1", "2"});
  space.add("i", {"0", "1"});
  space.exclude({"a", "0"}, {"c", "1"});
  space.exclude({"a", "0"}, {"c", "2"});
  space.exclude({"b", "2"}, {"d", "0"});
  space.exclude({"d", "1"}, {"e", "1"});
  return space;
}

// Returns every `strength`-tuple of values that occurs, as a combination with no other values set.
std::set<Combination> tuples(const std::vector<Combination>& combinations, int strength) {
  std::set<Combination> found;
  for (const Combination& full : combinations) {
    const size_t sets = size_t{1} << full.size();
    for (size_t chosen = 0; chosen < sets; ++chosen) {
      if (__builtin_popcountll(chosen) != strength) continue;
      Combination part(full.size(), kUnset);
      for (size_t d = 0; d < full.size(); ++d) {
        if (chosen >> d & 1) part[d] = full[d];
      }
      found.insert(std::move(part));
    }
  }
  return found;
}

TEST(Covering, CoversEveryPairOfValues) {
  const Space space = sample_space();
  const std::vector<Combination> combinations = space.all();
  for (const int strength : {1, 2, 3}) {
    const std::set<Combination> wanted = tuples(combinations, strength);
    for (const uint64_t seed : {1, 2, 3}) {
      const std::vector<Combination> covering = testing::covering(space, strength, seed);
      EXPECT_EQ(tuples(covering, strength), wanted) << "strength " << strength << ", seed " << seed;
    }
  }
}

TEST(Covering, ContainsOnlyAllowedCombinations) {
  const Space space = sample_space();
  const std::vector<Combination> combinations = space.all();
  for (const Combination& combination : covering(space, 2, 1)) {
    EXPECT_EQ(std::count(combinations.begin(), combinations.end(), combination), 1)
        << space.name(combination);
  }
}

// A covering of strength 2 has at least the product of the two largest dimensions, here 5 · 4.
TEST(Covering, IsMuchSmallerThanTheSpace) {
  const Space space = sample_space();
  EXPECT_EQ(space.all().size(), 10u /* of a, c */ * 7 /* of b, d, e */ * 60);
  EXPECT_GE(covering(space, 2, 1).size(), 20u);
  EXPECT_LE(covering(space, 2, 1).size(), 30u);
  EXPECT_LE(covering(space, 3, 1).size(), 120u);
}

TEST(Covering, IsDeterministicForASeed) {
  const Space space = sample_space();
  EXPECT_EQ(covering(space, 2, 7), covering(space, 2, 7));
  EXPECT_NE(covering(space, 2, 7), covering(space, 2, 8));
}

TEST(Covering, IsEmptyForASpaceWithoutCombinations) {
  Space space;
  space.add("a", {"0", "1"});
  space.add("b", {"0"});
  space.exclude({"a", "0"}, {"b", "0"});
  space.exclude({"a", "1"}, {"b", "0"});
  EXPECT_TRUE(space.all().empty());
  EXPECT_TRUE(covering(space, 2, 1).empty());
}

TEST(Space, OmitsSelfExcludingValuesAndKeepsFixedOnes) {
  Space space = sample_space();
  space.exclude({"f", "4"}, {"f", "4"});
  EXPECT_EQ(space.all().size(), 10u * 7 * 48);
  const Combination partial = space.partial({{"a", "3"}, {"b", "2"}});
  for (const Combination& combination : space.all(partial)) {
    EXPECT_EQ(combination[0], 3);
    EXPECT_EQ(combination[1], 2);
  }
  EXPECT_EQ(space.all(partial).size(), 3u /* of c */ * 48);
  EXPECT_EQ(space.name(partial), "a 3, b 2");
}

TEST(Covering, RejectsUnknownChoices) {
  Space space = sample_space();
  EXPECT_THROW(space.exclude({"a", "4"}, {"b", "0"}), std::out_of_range);
  EXPECT_THROW(space.exclude({"a", "0"}, {"z", "0"}), std::out_of_range);
  EXPECT_THROW(covering(space, 0, 1), std::out_of_range);
  EXPECT_THROW(covering(space, 10, 1), std::out_of_range);
}

}  // namespace
}  // namespace shardwise::testing::covering_test
