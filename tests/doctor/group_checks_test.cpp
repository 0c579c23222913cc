// Meshes with one axis larger than 1, over ranks that are threads. tests/mutation/run checks that a wrong
// mesh is found.
#include "shardwise/doctor/group_checks.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace shardwise::doctor::group_checks_test {
namespace {

TEST(CheckMesh, PassesOnEveryRank) {
  for (const int ranks : {2, 3}) {
    testing::on_ranks(ranks, [](const comm::Group& group) {
      const Check check = check_mesh(group);
      EXPECT_TRUE(check.passed) << check.detail;
      EXPECT_EQ(check.title(), "mesh");
    });
  }
}

TEST(CheckMesh, PassesForAGroupOfOne) {
  const Check check = check_mesh(comm::Group());
  EXPECT_TRUE(check.passed) << check.detail;
}

}  // namespace
}  // namespace shardwise::doctor::group_checks_test
