#include "shardwise/base/atomic_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/temporary.h"

namespace {
std::function<void()> before_flock;
}

// In place of the C library's.
extern "C" int flock(int fd, int operation) noexcept {
  if (before_flock) before_flock();
  return static_cast<int>(syscall(SYS_flock, fd, operation));
}

namespace shardwise::base::atomic_file_test {
namespace {

namespace fs = std::filesystem;
using test::contents;
using Names = std::set<std::string>;

Names names_in(const std::string& directory) {
  Names names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

/// Begins to write the file in a process that is killed then.
void begin_and_be_killed(const std::string& path) {
  const pid_t pid = fork();
  if (pid == 0) {
    const AtomicFile file(path);
    file.file().write(0, 4, "half");
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(AtomicFile, AppearsWhenItIsPublished) {
  const test::TemporaryDirectory dir;
  dir.put("a", "old");
  {
    AtomicFile file(dir / "a");
    file.file().write(0, 3, "new");
    EXPECT_EQ(contents(dir / "a"), "old");
    EXPECT_EQ(names_in(dir.path()).size(), 2u);
    file.publish();
    EXPECT_EQ(contents(dir / "a"), "new");
  }
  { const AtomicFile abandoned(dir / "b"); }
  EXPECT_EQ(names_in(dir.path()), Names{"a"});
}

TEST(AtomicFile, TheNextOneRemovesWhatAKilledProcessLeft) {
  const test::TemporaryDirectory dir;
  for (int i = 0; i < 2; ++i) {
    begin_and_be_killed(dir / "a");
    EXPECT_EQ(names_in(dir.path()).size(), 1u);
  }
  write_text(dir / "a", "whole");
  EXPECT_EQ(names_in(dir.path()), Names{"a"});
}

TEST(AtomicFile, OnlyItsOwnTemporaryFilesAreRemoved) {
  const test::TemporaryDirectory dir;
  const std::string digits(20, '7');
  const Names others{"a.tmp7",         "a.tmp" + digits + "7", "a.tmp7777777777777777777x",
                     "b.tmp" + digits, "ba.tmp" + digits,      "a.bak"};
  for (const std::string& name : others) dir.put(name, "of another");
  const std::string target = dir.put("target", "kept");
  fs::create_symlink(target, dir / ("a.tmp" + std::string(20, '8')));
  Names expected = names_in(dir.path());
  dir.put("a.tmp" + digits, "stale");
  write_text(dir / "a", "text");
  expected.insert("a");
  EXPECT_EQ(names_in(dir.path()), expected);
}

TEST(AtomicFile, OneThatIsBeingWrittenIsKept) {
  const test::TemporaryDirectory dir;
  AtomicFile first(dir / "a");
  first.file().write(0, 5, "first");
  write_text(dir / "a", "second");
  EXPECT_EQ(names_in(dir.path()).size(), 2u);
  first.publish();
  EXPECT_EQ(contents(dir / "a"), "first");
  EXPECT_EQ(names_in(dir.path()), Names{"a"});
}

// Another process removes the new file as a stale one before this one has locked it.
TEST(AtomicFile, OneThatWasRemovedBeforeItsLockIsCreatedAgain) {
  const test::TemporaryDirectory dir;
  const std::string temporary = temporary_beside(dir / "a");
  int removed = 0;
  before_flock = [&] {
    if (removed < 2) removed += unlink(temporary.c_str()) == 0;
  };
  AtomicFile file(dir / "a", temporary);
  before_flock = {};
  EXPECT_EQ(removed, 2);
  file.file().write(0, 4, "text");
  file.publish();
  EXPECT_EQ(contents(dir / "a"), "text");
}

TEST(AtomicFile, ManyAtOnceAllAppear) {
  const test::TemporaryDirectory dir;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 100; ++i) EXPECT_NO_THROW(write_text(dir / "a", std::to_string(writer)));
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(names_in(dir.path()), Names{"a"});
}

}  // namespace
}  // namespace shardwise::base::atomic_file_test
