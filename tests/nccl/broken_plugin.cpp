// A plugin that does not load. It is in LD_LIBRARY_PATH, which the loader searches before the program's
// RUNPATH. Sanitizer builds have an RPATH, which it searches first, and do not compile this file.
#include <gtest/gtest.h>

#include "tests/launch/program.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::testing::broken_plugin_test {
namespace {

TEST(NcclPlugin, ThatDoesNotLoadIsAnError) {
  const test::TemporaryDirectory directory;
  const std::string file = directory.put("shardwise_nccl.so", "not a library");
  Program program({GPU_RANKS, "device-error"}, {.environment = {"LD_LIBRARY_PATH=" + directory.path()}});
  EXPECT_EQ(exit_code(program.wait(60)), 0) << program.errors();
  EXPECT_TRUE(program.errors().starts_with("connect: the NCCL plugin must load; got " + file + ": "))
      << program.errors();
  EXPECT_TRUE(program.errors().ends_with("; install torch with all packages that it requires\n"))
      << program.errors();
}

}  // namespace
}  // namespace shardwise::testing::broken_plugin_test
