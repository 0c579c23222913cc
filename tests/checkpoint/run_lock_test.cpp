#include "shardwise/checkpoint/run_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "shardwise/base/files.h"
#include "tests/support/error_text.h"
#include "tests/support/small_files.h"
#include "tests/support/temporary.h"

namespace shardwise::checkpoint::run_lock_test {
namespace {

using test::contains, test::error_text;

TEST(RunLock, ASecondRunIsRefusedByTheNameOfTheFirst) {
  const test::TemporaryDirectory dir;
  std::optional<RunLock> first(dir.path());
  const std::string error = error_text([&] { RunLock second(dir.path()); });
  EXPECT_PRED2(contains, error,
               "train: --save " + dir.path() + ": one run at a time may save here; got a run of pid " +
                   std::to_string(getpid()) + " on ");
  first.reset();
  RunLock second(dir.path());
}

TEST(RunLock, AKilledRunReleasesIt) {
  const test::TemporaryDirectory dir;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    const RunLock lock(dir.path());
    if (write(ready[1], "", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_PRED2(contains, error_text([&] { RunLock second(dir.path()); }), "pid " + std::to_string(pid));
  kill(pid, SIGKILL);
  RunLock second(dir.path());  // also while the kernel still removes the process
  waitpid(pid, nullptr, 0);
  close(ready[0]), close(ready[1]);
}

TEST(RunLock, AFullDiskIsNamed) {
  const test::TemporaryDirectory dir;
  const test::SmallFiles small(0);
  EXPECT_EQ(error_text<base::FileError>([&] { RunLock lock(dir.path()); }),
            "write " + dir / ".lock: File too large");
}

TEST(RunLock, ALinkIsNotFollowed) {
  const test::TemporaryDirectory dir;
  const std::string file = dir.put("other/file", "kept");
  std::filesystem::create_symlink(file, dir / ".lock");
  EXPECT_PRED2(contains, error_text<base::FileError>([&] { RunLock lock(dir.path()); }), ".lock");
  EXPECT_EQ(test::contents(file), "kept");
}

}  // namespace
}  // namespace shardwise::checkpoint::run_lock_test
