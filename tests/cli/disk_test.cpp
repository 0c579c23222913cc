// A full disk, and a directory that becomes read-only or is moved away while a job saves: the job prints a
// clear error, the last checkpoint loads, and no incomplete files are left.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <sstream>

#include "shardwise/base/clock.h"
#include "tests/cli/chain.h"
#include "tests/support/deadline.h"
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
    Words flags = {"--warmup", "2", "--tp", std::to_string(tp), "--save", save};
    flags.insert(flags.end(), more.begin(), more.end());
    return training_command(scratch_, kEndless, flags);
  }

  static std::string latest(const std::string& directory) {
    std::error_code none;
    return fs::read_symlink(directory + "/latest", none);
  }

  /// Resumes the last checkpoint for one step and expects that the directory then has only checkpoints.
  void expect_resumes(const std::string& directory) const {
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
    while (!has_ended(program) && latest(directory).empty() && watch.seconds() < scaled_s(60)) usleep(1000);
  }

  const Program::Options kOneThread{.environment = {"SHARDWISE_THREADS=1"}};
  Scratch scratch_;
};

/// Returns whether this process may mount a file system in a namespace of its children.
bool may_mount(const Words& unshare) {
  Words argv = unshare;
  argv.insert(argv.end(), {"/bin/mount", "-t", "tmpfs", "none", "/mnt"});
  Program program(argv);
  return program.wait() == 0;
}

/// One save with limited free space, and the state of the directory after it.
struct Attempt {
  int free_kib, code;
  std::string latest, names, errors;
};

Attempt parsed(const std::string& line) {
  Attempt attempt;
  std::istringstream words(line);
  std::string names;
  words >> attempt.free_kib >> attempt.code >> attempt.latest;
  std::getline(words, names, '|');
  std::getline(words, attempt.errors);
  attempt.names = names;
  return attempt;
}

void expect_refused(const Attempt& attempt, const std::string& save, const std::string& reason) {
  const std::string shown = fmt::format("{} KiB free: {}", attempt.free_kib, attempt.errors);
  EXPECT_EQ(attempt.code, 1) << shown;
  EXPECT_EQ(attempt.latest, "step-2") << shown;
  EXPECT_EQ(attempt.names, " .lock latest step-2 ") << shown;
  EXPECT_PRED2(contains, attempt.errors, reason) << shown;
  EXPECT_PRED2(contains, attempt.errors, "rank 0") << shown;
  EXPECT_PRED2(contains, attempt.errors, save + "/") << shown;
}

/// A limit on what the ranks may write, as parts of a script, and what a save beyond it says.
struct Limit {
  int tp, largest;          // KiB with which a save still fails
  std::string begin, each;  // before the first run, and before each save with $free KiB
  std::string end = {};     // before the last save, which succeeds
  const char* reason;
};

/// Saves step 2, and step 3 with too few KiB, several times; expects each to leave step 2. Then saves step 3.
/// The script is run by `prefix`.
class LimitedDisk : public Disk {
 protected:
  void expect_saves_fail(const Words& prefix, const Limit& limit) const {
    const int between = is_full() ? 4 : 72;
    Words argv = prefix;
    argv.insert(argv.end(), {"/bin/bash", "-c", script(limit, between)});
    Program program(argv);
    ASSERT_EQ(program.wait(/*limit_s=*/600), 0) << program.errors();
    std::istringstream lines(program.output());
    int attempts = 0;
    for (std::string line; std::getline(lines, line); ++attempts) {
      if (line == "0 end") break;
      expect_refused(parsed(line), save_, limit.reason);
    }
    EXPECT_EQ(attempts, limit.largest / between + 1) << program.output();
    EXPECT_PRED2(contains, program.output(), "0 end");
    fmt::print("covered: full disk: {} saves failed with \"{}\"\n", attempts, limit.reason);
  }

  const std::string disk_ = scratch_ / "disk", save_ = disk_ + "/saved";

 private:
  std::string script(const Limit& limit, int between) const {
    const std::string errors = scratch_ / "errors";
    const std::string first = joined(train(save_, {"--stop-after", "2"}, limit.tp));
    const std::string second = joined(train(save_, {"--resume", save_, "--stop-after", "3"}, limit.tp));
    return "export SHARDWISE_THREADS=1; mkdir " + disk_ + "\n" + limit.begin + "\n" + first +
           " 2>/dev/null || exit 8\n" +
           fmt::format("for free in $(seq 0 {} {}); do (\n", between, limit.largest) + limit.each + "\n" +
           second + " 2>" + errors + "; code=$?\necho $free $code $(readlink " + save_ + "/latest) $(ls -A " +
           save_ + ") '|' $(tr '\\n' ' ' <" + errors + ")\n); done\n" + limit.end + "\n" + second +
           " 2>/dev/null; echo $? end\n";
  }
};

// Of one rank, because shared memory is a file too. The largest file of a save has 171 KiB.
TEST_F(LimitedDisk, AFileAboveTheLimitOnFilesLeavesTheLastCheckpoint) {
  expect_saves_fail({}, {.tp = 1,
                         .largest = 168,
                         .begin = "",
                         .each = "ulimit -S -f $((free > 0 ? free : 1))",
                         .reason = "File too large"});
}

class FullDisk : public LimitedDisk {};

// A small tmpfs in its own mount namespace, filled up to a number of free KiB. A save needs about 270 KiB.
TEST_F(FullDisk, ASaveLeavesTheLastCheckpoint) {
  const Words unshare = geteuid() == 0 ? Words{"/usr/bin/unshare", "-m"} : Words{"/usr/bin/unshare", "-Urm"};
  if (!may_mount(unshare)) GTEST_SKIP() << "no disk was full: this process may not mount one";
  const std::string filler = disk_ + "/filler";
  expect_saves_fail(unshare, {.tp = 2,
                              .largest = 220,
                              .begin = "mount -t tmpfs -o size=1500k none " + disk_ + " || exit 9",
                              .each = "rm -f " + filler + "; avail=$(df -k --output=avail " + disk_ +
                                      " | tail -1); head -c $((1024 * (avail - free))) /dev/zero > " + filler,
                              .end = "rm -f " + filler,
                              .reason = "no space left on the disk"});
}

// Root may write anywhere, so it drops that capability first.
TEST_F(Disk, DirectoryBecomesReadOnly) {
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
    expect_resumes(save);
  }
}

// The directory is moved away by one rename, during a save or between two; the next save then creates it
// again.
TEST_F(Disk, DirectoryIsMovedAway) {
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
      expect_resumes(save);
    }
    expect_resumes(gone);
  }
  if (is_full()) {
    EXPECT_GT(failed, 0) << "it was never moved during a save";
  }
  fmt::print("covered: moved directory: {} during a save\n", failed);
}

}  // namespace
}  // namespace shardwise::testing::disk_test
