#include "shardwise/checkpoint/folders.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "shardwise/base/files.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::checkpoint {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

TEST(TemporaryFolder, IsGoneUnlessPublished) {
  const test::TemporaryFolder dir;
  const fs::path path = temporary_path(dir.path(), /*step=*/3, /*writer=*/42);
  EXPECT_EQ(path, dir / ".step-3.tmp-42");
  {
    const TemporaryFolder folder(path);
    put(path / "file", "text");
  }
  EXPECT_FALSE(fs::exists(path));
  {
    TemporaryFolder folder(path);
    put(path / "file", "text");
    folder.publish(dir / "step-3");
  }
  EXPECT_EQ(test::contents(dir / "step-3/file"), "text");
  EXPECT_FALSE(fs::exists(path));
}

TEST(TemporaryFolder, IsNotTakenFromAnother) {
  const test::TemporaryFolder dir;
  const TemporaryFolder folder(dir / "new");
  const std::string text = test::error_text<base::FileError>([&] { TemporaryFolder again(dir / "new"); });
  EXPECT_EQ(text, "make folder " + dir / "new" + ": File exists");
  EXPECT_TRUE(fs::exists(dir / "new"));
}

TEST(TemporaryFolder, IsLockedWhileItIsWrittenAndNotAfterwards) {
  const test::TemporaryFolder dir;
  {
    const fs::path path = temporary_path(dir.path(), 1, 42);
    const TemporaryFolder folder(path);
    remove_stale(dir.path());
    EXPECT_TRUE(fs::exists(path));
    fs::copy(path, temporary_path(dir.path(), 1, 43));
  }
  remove_stale(dir.path());
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

// There is an instant between making a folder and locking it.
TEST(TemporaryFolder, IsNeverTakenForAbandonedWhileItIsMade) {
  const test::TemporaryFolder dir;
  std::atomic<bool> is_over = false;
  std::thread cleaner([&] {
    while (!is_over) remove_stale(dir.path());
  });
  int missing = 0;
  for (int i = 0; i < 3000; ++i) {
    const fs::path path = temporary_path(dir.path(), 1, i);
    const TemporaryFolder folder(path);
    missing += !fs::exists(path);
  }
  is_over = true;
  cleaner.join();
  EXPECT_EQ(missing, 0);
}

TEST(TemporaryFolder, NobodySeesTheNameWithoutAFolder) {
  const test::TemporaryFolder dir;
  const fs::path target = dir / "step-1";
  dir.put("step-1/file", "0");
  std::atomic<bool> is_over = false;
  std::atomic<int> looks = 0, misses = 0;
  std::thread watcher([&] {
    while (!is_over) {
      ++looks;
      misses += !base::exists(target / "file");
    }
  });
  for (int i = 1; i <= 100 || looks < 1000; ++i) {
    const fs::path path = temporary_path(dir.path(), 1, i);
    TemporaryFolder folder(path);
    put(path / "file", std::to_string(i));
    folder.publish(target);
    EXPECT_EQ(test::contents(target / "file"), std::to_string(i));
  }
  is_over = true;
  watcher.join();
  EXPECT_EQ(misses, 0);
}

}  // namespace
}  // namespace shardwise::checkpoint
