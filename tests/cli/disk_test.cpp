// Disks that fill up, directories that turn read-only or vanish while a job saves: a clear error, a
// checkpoint that loads, nothing half-named.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <sstream>

#include "shardwise/base/clock.h"
#include "tests/cli/chain.h"
#include "tests/support/error_text.h"
#include "tests/support/extent.h"

namespace shardwise::testing::disk_test {
namespace {

namespace fs = std::filesystem;
using test::contains;
using Words = std::vector<std::string>;

std::string joined(const Words& words) {
  std::string line;
  for (const std::string& word : words) line += "'" + word + "' ";
  return line;
}

class Disk : public ::testing::Test {
 protected:
  Disk() { small_options(scratch_); }

  Words train(const std::string& save, const Words& more, int tp = 2) const {
    Words own = {"--warmup", "2", "--tp", std::to_string(tp), "--save", save};
    own.insert(own.end(), more.begin(), more.end());
    return endless_training(scratch_, own);
  }

  static std::string latest(const std::string& directory) {
    std::error_code none;
    return fs::read_symlink(directory + "/latest", none);
  }

  /// Goes on for one step from the directory's last checkpoint; afterward it holds nothing but checkpoints.
  void expect_goes_on(const std::string& directory) const {
    const std::string step = latest(directory);
    ASSERT_TRUE(step.starts_with("step-")) << directory << " has " << step;
    const std::string next = std::to_string(std::stoll(step.substr(5)) + 1);
    Program program(train(directory, {"--resume", directory, "--stop-after", next}), kOneThread);
    EXPECT_EQ(exit_code(program.wait(60)), 0) << program.errors();
    EXPECT_EQ(latest(directory), "step-" + next);
    EXPECT_EQ(half_written(directory), std::set<std::string>());
  }

  static bool has_ended(const Program& program) {
    siginfo_t ended{};
    return waitid(P_PID, program.pid(), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0;
  }

  static void wait_for_end_or_checkpoint(const Program& program, const std::string& directory) {
    const base::Stopwatch watch;
    while (!has_ended(program) && latest(directory).empty() && watch.seconds() < 60) usleep(1000);
  }

  const Program::Options kOneThread{.environment = {"SHARDWISE_THREADS=1"}};
  Scratch scratch_;
};

/// Whether this process may mount a file system that only its children see.
bool may_mount(const Words& unshare) {
  Words argv = unshare;
  argv.insert(argv.end(), {"/bin/mount", "-t", "tmpfs", "none", "/mnt"});
  Program program(argv);
  return program.wait() == 0;
}

/// One save into what was left free, and what the directory looks like afterward.
struct Attempt {
  int free_kib, code;
  std::string latest, names, said;
};

Attempt parsed(const std::string& line) {
  Attempt attempt;
  std::istringstream words(line);
  std::string names;
  words >> attempt.free_kib >> attempt.code >> attempt.latest;
  std::getline(words, names, '|');
  std::getline(words, attempt.said);
  attempt.names = names;
  return attempt;
}

void expect_refused(const Attempt& attempt, const std::string& save, const std::string& reason) {
  const std::string shown = fmt::format("{} KiB free: {}", attempt.free_kib, attempt.said);
  EXPECT_EQ(attempt.code, 1) << shown;
  EXPECT_EQ(attempt.latest, "step-2") << shown;
  EXPECT_EQ(attempt.names, " latest step-2 ") << shown;
  EXPECT_PRED2(contains, attempt.said, reason) << shown;
  EXPECT_PRED2(contains, attempt.said, "rank 0") << shown;
  EXPECT_PRED2(contains, attempt.said, save + "/") << shown;
}

// A small tmpfs in a mount namespace of its own, filled up to so many KiB; where that is not allowed, files
// that may not grow beyond them, on one rank, as what ranks share is a file too. A save takes about 270 KiB,
// its largest file 171 of them.
TEST_F(Disk, FullWhileSaving) {
  const Words unshare = geteuid() == 0 ? Words{"/usr/bin/unshare", "-m"} : Words{"/usr/bin/unshare", "-Urm"};
  const bool mounts = may_mount(unshare);
  fs::create_directory(scratch_ / "disk");
  const std::string save = scratch_ / "disk/saved", disk = scratch_ / "disk";
  const int tp = mounts ? 2 : 1, last = mounts ? 220 : 168, between = is_full() ? 4 : 72;
  const std::string first = joined(train(save, {"--stop-after", "2"}, tp));
  const std::string second = joined(train(save, {"--resume", save, "--stop-after", "3"}, tp));
  const std::string fill = "rm -f " + disk + "/filler; avail=$(df -k --output=avail " + disk +
                           " | tail -1); head -c $((1024 * (avail - free))) /dev/zero > " + disk + "/filler";
  const std::string limit = "ulimit -S -f $((free > 0 ? free : 1))";
  const std::string script =
      "export SHARDWISE_THREADS=1\n" +
      (mounts ? "mount -t tmpfs -o size=1500k none " + disk + " || exit 9\n" : "") + first +
      " 2>/dev/null || exit 8\n" + fmt::format("for free in $(seq 0 {} {}); do (\n", between, last) +
      (mounts ? fill : limit) + "\n" + second + " 2>" + scratch_ / "said" + "; code=$?\n" +
      "echo $free $code $(readlink " + save + "/latest) $(ls -A " + save + ") '|' $(tr '\\n' ' ' <" +
      scratch_ / "said" + ")\n); done\nrm -f " + disk + "/filler\n" + second + " 2>/dev/null; echo $? end\n";
  Words argv = mounts ? unshare : Words{};
  argv.insert(argv.end(), {"/bin/bash", "-c", script});
  Program program(argv);
  ASSERT_EQ(program.wait(/*limit_s=*/600), 0) << program.errors();
  std::istringstream lines(program.output());
  int attempts = 0;
  for (std::string line; std::getline(lines, line); ++attempts) {
    if (line == "0 end") break;
    expect_refused(parsed(line), save, mounts ? "no room left on the disk" : "File too large");
  }
  EXPECT_EQ(attempts, last / between + 1) << program.output();
  EXPECT_PRED2(contains, program.output(), "0 end");
  fmt::print("covered: full disk: {} saves refused, by {}\n", attempts,
             mounts ? "a full tmpfs" : "a limit on files");
}

// Root may write anywhere: it gives that right up first.
TEST_F(Disk, DirectoryTurnsReadOnly) {
  std::mt19937 random(7);
  const std::string save = scratch_ / "saved";
  Words argv = geteuid() == 0 ? Words{"/usr/bin/setpriv", "--bounding-set", "-dac_override,-dac_read_search"}
                              : Words{};
  const Words training = train(save, {"--save-every", "1"});
  argv.insert(argv.end(), training.begin(), training.end());
  for (int i = 0; i < (is_full() ? 20 : 2); ++i) {
    fs::remove_all(save);
    Program program(argv, kOneThread);
    wait_for_checkpoint(save, program);
    usleep(random() % 200'000);
    fs::permissions(save, fs::perms(0555));
    EXPECT_EQ(exit_code(program.wait()), 1) << program.errors();
    fs::permissions(save, fs::perms(0755));
    EXPECT_PRED2(contains, program.errors(), "Permission denied");
    EXPECT_PRED2(contains, program.errors(), save + "/");
    EXPECT_PRED2(contains, program.errors(), "rank 0");
    expect_goes_on(save);
  }
}

// It is moved away in one step, in the middle of a save or between two: then the next save makes it again.
TEST_F(Disk, DirectoryVanishes) {
  std::mt19937 random(8);
  const std::string save = scratch_ / "saved", gone = scratch_ / "gone";
  int failed = 0;
  for (int i = 0; i < (is_full() ? 40 : 3); ++i) {
    fs::remove_all(save);
    fs::remove_all(gone);
    Program program(train(save, {"--save-every", "1"}), kOneThread);
    wait_for_checkpoint(save, program);
    usleep(random() % 200'000);
    fs::rename(save, gone);
    wait_for_end_or_checkpoint(program, save);
    program.send(SIGTERM);
    const int code = exit_code(program.wait());
    if (code == 1) {
      ++failed;
      EXPECT_PRED2(contains, program.errors(), save + "/");
      EXPECT_PRED2(contains, program.errors(), "No such file or directory");
    } else {
      EXPECT_EQ(code, 128 + SIGTERM) << program.errors();
      expect_goes_on(save);
    }
    expect_goes_on(gone);
  }
  if (is_full()) {
    EXPECT_GT(failed, 0) << "it never vanished in the middle of a save";
  }
  fmt::print("covered: vanished directory: {} in the middle of a save\n", failed);
}

}  // namespace
}  // namespace shardwise::testing::disk_test
