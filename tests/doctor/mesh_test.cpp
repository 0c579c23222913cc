// Meshes of one real axis over ranks that are threads; that a wrong one is found, tests/mutation/run checks.
#include "shardwise/doctor/mesh.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace shardwise::doctor::mesh_test {
namespace {

TEST(AuditMesh, HoldsOnEveryRank) {
  for (const int ranks : {2, 3}) {
    testing::on_ranks(ranks, [](const comm::Group& group) {
      const Audit audit = audit_mesh(group);
      EXPECT_TRUE(audit.holds) << audit.detail;
      EXPECT_EQ(audit.title(), "mesh");
    });
  }
}

TEST(AuditMesh, HoldsForARankAlone) {
  const Audit audit = audit_mesh(comm::Group());
  EXPECT_TRUE(audit.holds) << audit.detail;
}

}  // namespace
}  // namespace shardwise::doctor::mesh_test
