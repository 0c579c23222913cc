// The exit code of a test program, which is the result of a suite for ctest.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

namespace shardwise::testing::main_test {
namespace {

/// Runs this program with `arguments` and returns its exit code.
int exit_code(const std::string& arguments, const std::string& environment = "") {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = environment + " '" + program + "' " + arguments + " >/dev/null 2>&1";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(MainFunction, AFilterThatMatchesNoTestFails) {
  EXPECT_EQ(exit_code("--gtest_filter=NoSuch.*"), 1);
  EXPECT_EQ(exit_code("--gtest_filter=MainFunction.DISABLED_Passes --gtest_also_run_disabled_tests"), 0);
}

TEST(MainFunction, ListsAndDisabledSuitesAndEmptyShardsPass) {
  EXPECT_EQ(exit_code("--gtest_list_tests --gtest_filter=NoSuch.*"), 0);
  EXPECT_EQ(exit_code("--gtest_filter=MainFunction.DISABLED_Passes"), 0);
  EXPECT_EQ(exit_code("--gtest_filter=MainFunction.DISABLED_Passes --gtest_also_run_disabled_tests",
                      "GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=1"),
            0);
}

TEST(MainFunction, DISABLED_Passes) {}

}  // namespace
}  // namespace shardwise::testing::main_test
