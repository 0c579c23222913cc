// A directory is durable before it gets its name, whatever its writer has synced: today's writers end with a
// file that base::write_text() renames, which syncs all names in the directory.
#include "tests/durability/recorded_run.h"

namespace shardwise::testing::durability_publish_test {
namespace {

class Published : public RecordedRun {};

TEST_F(Published, DirectoriesAreDurableBeforeTheyGetTheirNames) {
  run({DURABILITY_PUBLISHER, tree_});  // checks the order of its system calls
  const Tree after = tree_at(tree_);
  EXPECT_EQ(after.at("step-1/weights").text, "1");
  EXPECT_EQ(after.at("model/weights").text, "new");
  EXPECT_EQ(after.size(), 4u) << "two directories with a file each";
}

}  // namespace
}  // namespace shardwise::testing::durability_publish_test
