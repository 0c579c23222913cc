// The planned memory of the ranks as a line of text and as JSON.
#include "shardwise/cli/planned_memory.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace shardwise::cli::planned_memory_test {
namespace {

const PlannedMemories kUneven{{66'200'000, 22'120'000}, {66'200'000, 22'120'000}, {60'000'000, 20'000'000}};

TEST(PlannedMemory, RanksWithEqualFiguresShareAnEntry) {
  EXPECT_EQ(to_text(kUneven),
            "planned peak memory: ranks 0 to 1: 88.32 MB (66.20 private, 22.12 shared); "
            "rank 2: 80.00 MB (60.00 private, 20.00 shared)");
  EXPECT_EQ(to_text(PlannedMemories{{88'320'000, 0}}), "planned peak memory: 88.32 MB");
}

TEST(PlannedMemory, JsonHasEveryRankAndItsSum) {
  const auto json = to_json(kUneven);
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[2].dump(),
            R"({"rank":2,"private_bytes":60000000,"symmetric_heap_bytes":20000000,"bytes":80000000})");
}

}  // namespace
}  // namespace shardwise::cli::planned_memory_test
