#include "shardwise/cuda/architectures.h"

#include <gtest/gtest.h>

namespace shardwise::device_test {
namespace {

TEST(Architectures, InstructionsRunOnLaterGpusOfTheirMajorVersion) {
  using cuda::runs_on;
  EXPECT_TRUE(runs_on("sm_90", 90));
  EXPECT_TRUE(runs_on("sm_80", 89));
  EXPECT_FALSE(runs_on("sm_80", 75));
  EXPECT_FALSE(runs_on("sm_90", 89));
  EXPECT_FALSE(runs_on("sm_90", 100));
  EXPECT_TRUE(runs_on("sm_80 sm_90 sm_100", 103));
  EXPECT_FALSE(runs_on("", 90));
}

TEST(Architectures, PtxRunsOnAllLaterGpus) {
  using cuda::runs_on;
  EXPECT_TRUE(runs_on("compute_90", 90));
  EXPECT_TRUE(runs_on("sm_80 compute_90", 120));
  EXPECT_FALSE(runs_on("sm_100 compute_100", 90));
}

}  // namespace
}  // namespace shardwise::device_test
