// The memory that a process can still allocate: of the host, and of its cgroup.
#include "shardwise/launch/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary.h"

namespace shardwise::testing::available_memory_test {
namespace {

namespace fs = std::filesystem;

class AvailableMemory : public ::testing::Test {
 protected:
  void write(const fs::path& name, const std::string& text) const {
    const fs::path path = fs::path(scratch_.path()) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  int64_t available(const std::string& cgroups) const {
    write("meminfo", "MemTotal:       8000 kB\nMemFree:  10 kB\nMemAvailable:   4000 kB\n");
    write("self", cgroups);
    return launch::available_memory(scratch_ / "meminfo", scratch_ / "self", scratch_.path());
  }
  const test::TemporaryDirectory scratch_;
};

TEST_F(AvailableMemory, IsThatOfTheHostWithoutALimit) {
  EXPECT_EQ(available("0::/a\n"), 4000 * 1024);
  write("a/memory.max", "max\n");
  write("a/memory.current", "999999999\n");
  EXPECT_EQ(available("0::/a\n"), 4000 * 1024);
}

TEST_F(AvailableMemory, IsWhatTheSmallestLimitLeaves) {
  write("a/b/memory.max", "3000000\n");
  write("a/b/memory.current", "1000000\n");
  EXPECT_EQ(available("0::/a/b\n"), 2'000'000);
  write("a/b/memory.stat", "anon 5\ninactive_file 300000\nactive_file 7\n");
  EXPECT_EQ(available("0::/a/b\n"), 2'300'000);
  write("a/memory.max", "1500000\n");
  write("a/memory.current", "1400000\n");
  EXPECT_EQ(available("0::/a/b\n"), 100'000);
  write("a/memory.current", "1600000\n");
  EXPECT_EQ(available("0::/a/b\n"), 0);
}

TEST_F(AvailableMemory, IsReadFromCgroupVersion1) {
  write("memory/x/memory.limit_in_bytes", "2000000\n");
  write("memory/x/memory.usage_in_bytes", "500000\n");
  write("memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 200000\n");
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available("4:memory:/x\n3:cpu:/y\n"), 1'700'000);
  EXPECT_EQ(available("4:memory:/\n"), 4000 * 1024);
}

TEST(AvailableMemoryOfThisHost, IsPositive) {
  EXPECT_GT(launch::available_memory(), 0);
}

}  // namespace
}  // namespace shardwise::testing::available_memory_test
