#include "shardwise/base/philox.h"

#include <gtest/gtest.h>

namespace shardwise::base::philox_test {
namespace {

// Known answers: Random123, tests/kat_vectors, philox4x32 10.
TEST(Philox, MatchesKnownAnswers) {
  EXPECT_EQ(philox({{0, 0, 0, 0}}, 0), (PhiloxBlock{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  EXPECT_EQ(philox({{~0u, ~0u, ~0u, ~0u}}, ~uint64_t{0}),
            (PhiloxBlock{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  EXPECT_EQ(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822),
            (PhiloxBlock{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(Philox, CountersHoldTheIndexLowWordFirstAndTheUse) {
  EXPECT_EQ(philox(0x0123456789abcdef, PhiloxUse::fold, 5), philox({{0x89abcdef, 0x01234567, 1, 0}}, 5));
}

}  // namespace
}  // namespace shardwise::base::philox_test
