// Parts of a range of memory: the first that fits is taken, and what is given back joins its neighbors.
#include "tests/support/fake_device/blocks.h"

#include <gtest/gtest.h>

#include <tuple>

namespace shardwise::fake_device {
namespace {

TEST(FakeDeviceBlocks, AreAlignedAndTheFirstThatFits) {
  Blocks blocks(1024);
  EXPECT_EQ(blocks.take(1), 0u);
  EXPECT_EQ(blocks.take(257), 256u);
  EXPECT_EQ(blocks.used_bytes(), 768u);
  blocks.give_back(0);
  EXPECT_EQ(blocks.take(257), std::nullopt);  // 256 bytes are free at 0 and at 768
  EXPECT_EQ(blocks.take(256), 0u);
  EXPECT_EQ(blocks.take(256), 768u);
  EXPECT_EQ(blocks.take(1), std::nullopt);
}

TEST(FakeDeviceBlocks, JoinTheirFreeNeighborsInEveryOrder) {
  for (const auto& [a, b, c] : {std::tuple(0, 1, 2), std::tuple(2, 1, 0), std::tuple(0, 2, 1),
                                std::tuple(2, 0, 1), std::tuple(1, 0, 2), std::tuple(1, 2, 0)}) {
    Blocks blocks(768);
    for (int i = 0; i < 3; ++i) blocks.take(256);
    for (const int each : {a, b, c}) blocks.give_back(256 * each);
    EXPECT_EQ(blocks.used_bytes(), 0u);
    EXPECT_EQ(blocks.take(768), 0u) << a << b << c;
  }
}

}  // namespace
}  // namespace shardwise::fake_device
