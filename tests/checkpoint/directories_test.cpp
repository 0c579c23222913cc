#include "shardwise/checkpoint/directories.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "shardwise/base/files.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace {
std::function<void()> while_waiting_for_a_lock;
}

// In place of the C library's.
extern "C" int flock(int fd, int operation) noexcept {
  const auto result = static_cast<int>(syscall(SYS_flock, fd, operation));
  const int error = errno;
  if (result != 0 && while_waiting_for_a_lock) while_waiting_for_a_lock();
  errno = error;
  return result;
}

namespace shardwise::checkpoint::directories_test {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

TEST(TemporaryDirectory, IsRemovedUnlessPublished) {
  const test::TemporaryDirectory dir;
  const fs::path path = temporary_path(dir.path(), /*step=*/3, /*unique=*/42);
  EXPECT_EQ(path, dir / ".step-3.tmp-42");
  {
    const TemporaryDirectory directory(path);
    put(path / "file", "text");
  }
  EXPECT_FALSE(fs::exists(path));
  {
    TemporaryDirectory directory(path);
    put(path / "file", "text");
    directory.publish(dir / "step-3");
  }
  EXPECT_EQ(test::contents(dir / "step-3/file"), "text");
  EXPECT_FALSE(fs::exists(path));
}

// The order in which a directory lists its entries depends on that of their creation.
TEST(Prune, KeepsTheCurrentStepAndTheHighestBelowIt) {
  std::vector<int64_t> steps{2, 3, 4, 5};
  do {
    const test::TemporaryDirectory dir;
    for (const int64_t step : steps) dir.put(step_name(step) + "/file", "");
    ::testing::internal::CaptureStderr();
    prune(dir.path(), /*current=*/4, /*keep=*/3);
    EXPECT_PRED2(test::contains, ::testing::internal::GetCapturedStderr(), "removes step 5");
    EXPECT_FALSE(fs::exists(dir / "step-5"));
    prune(dir.path(), 4, 2);
    EXPECT_FALSE(fs::exists(dir / "step-2"));
    prune(dir.path(), 4, 1);
    EXPECT_FALSE(fs::exists(dir / "step-3"));
    EXPECT_TRUE(fs::exists(dir / "step-4"));
  } while (std::ranges::next_permutation(steps).found);
}

TEST(TemporaryDirectory, FailsIfThePathExists) {
  const test::TemporaryDirectory dir;
  const TemporaryDirectory directory(dir / "new");
  const std::string text = test::error_text<base::FileError>([&] { TemporaryDirectory again(dir / "new"); });
  EXPECT_EQ(text, "make directory " + dir / "new" + ": File exists");
  EXPECT_TRUE(fs::exists(dir / "new"));
}

TEST(TemporaryDirectory, IsLockedOnlyWhileItIsWritten) {
  const test::TemporaryDirectory dir;
  {
    const fs::path path = temporary_path(dir.path(), 1, 42);
    const TemporaryDirectory directory(path);
    remove_stale(dir.path());
    EXPECT_TRUE(fs::exists(path));
    fs::copy(path, temporary_path(dir.path(), 1, 43));
  }
  remove_stale(dir.path());
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

// Whoever may read the directory may hold its lock, for days.
TEST(TemporaryDirectory, AndLatestDoNotWaitForeverForTheParentsLock) {
  constexpr std::chrono::milliseconds kWait{50};
  const test::TemporaryDirectory dir;
  const base::Fd lock(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_SH), 0);
  const std::string named = "lock directory " + dir.path() + ": another process has had its lock for";
  EXPECT_PRED2(test::contains,
               test::error_text<base::FileError>([&] { TemporaryDirectory(dir / "new", kWait); }), named);
  EXPECT_PRED2(test::contains, test::error_text<base::FileError>([&] { point_latest(dir.path(), 1, kWait); }),
               named);
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

// The target appeared while the directory was written.
TEST(TemporaryDirectory, PublishesNothingOverANewTarget) {
  const test::TemporaryDirectory dir;
  dir.put("model/theirs", "");
  TemporaryDirectory ours(dir / ".model.tmp-1");
  EXPECT_FALSE(ours.publish_new(dir / "model"));
  EXPECT_TRUE(fs::exists(dir / "model/theirs"));
  EXPECT_TRUE(fs::exists(dir / ".model.tmp-1"));
}

// Every file system refuses these names.
TEST(TemporaryDirectory, NamesATargetThatItCannotBecome) {
  const test::TemporaryDirectory dir;
  TemporaryDirectory ours(dir / "ours");
  const std::string too_long = dir / std::string(300, 'x'), itself = dir / "model/.";
  EXPECT_EQ(test::error_text<base::FileError>([&] { ours.publish_new(too_long); }),
            "rename to " + too_long + ": File name too long");
  fs::create_directory(dir / "model");
  EXPECT_EQ(test::error_text<base::FileError>([&] { ours.publish(itself); }),
            "exchange with " + itself + ": Device or resource busy");
}

// Another process must not remove a directory between its creation and its lock.
TEST(TemporaryDirectory, CreationAndCleanupLockTheParent) {
  const test::TemporaryDirectory dir;
  dir.put(".step-1.tmp-7/file", "abandoned");
  base::Fd lock(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  remove_stale(dir.path());
  EXPECT_TRUE(fs::exists(dir / ".step-1.tmp-7"));
  const fs::path path = temporary_path(dir.path(), 1, 42);
  std::optional<bool> existed;  // while its maker waited for the first lock, which is this test's
  while_waiting_for_a_lock = [&] {
    if (!existed) existed = fs::exists(path);
    lock = base::Fd();
  };
  const TemporaryDirectory directory(path);
  while_waiting_for_a_lock = {};
  EXPECT_EQ(existed, false);
  remove_stale(dir.path());
  EXPECT_TRUE(fs::exists(path));
  EXPECT_FALSE(fs::exists(dir / ".step-1.tmp-7"));
}

TEST(TemporaryDirectory, TargetExistsThroughoutAReplacement) {
  const test::TemporaryDirectory dir;
  const fs::path target = dir / "step-1";
  dir.put("step-1/file", "0");
  std::atomic<bool> is_done = false;
  std::atomic<int> checks = 0, misses = 0;
  std::thread watcher([&] {
    while (!is_done) {
      ++checks;
      misses += !base::exists(target / "file");
    }
  });
  for (int i = 1; i <= 100 || checks < 1000; ++i) {
    const fs::path path = temporary_path(dir.path(), 1, i);
    TemporaryDirectory directory(path);
    put(path / "file", std::to_string(i));
    directory.publish(target);
    EXPECT_EQ(test::contents(target / "file"), std::to_string(i));
  }
  is_done = true;
  watcher.join();
  EXPECT_EQ(misses, 0);
}

}  // namespace
}  // namespace shardwise::checkpoint::directories_test
