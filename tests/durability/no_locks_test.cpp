// Saves on a file system without locks, such as some network file systems: they succeed, and nothing that
// another process may be writing is removed.
#include <fmt/format.h>

#include "shardwise/checkpoint/checkpoint.h"
#include "tests/durability/recorded_run.h"
#include "tests/launch/program.h"
#include "tests/support/error_text.h"

namespace shardwise::testing::no_locks_test {
namespace {

namespace fs = std::filesystem;
using test::contains;

class NoLocks : public RecordedRun {
 protected:
  NoLocks() {
    scratch_.put("tree/runs/saved/.step-9.tmp-4711/config.json", "half");
    scratch_.put(half_report_, "half");
    fs::create_symlink("step-9", saved_ + "/latest.tmp4711");
  }

  /// Trains up to `steps` steps and returns what the program wrote to standard error.
  std::string errors_of(int tp, int steps, Words more, const char* preloaded) const {
    const Words save = saving(saved_, /*keep=*/1);
    more.insert(more.end(), save.begin(), save.end());
    more.insert(more.end(), {"--report", tree_ + "/report.json"});
    Program program(training(tp, steps, more),
                    {.environment = {std::string("LD_PRELOAD=") + preloaded, "SHARDWISE_THREADS=1"}});
    EXPECT_EQ(exit_code(program.wait(kStartLimit)), 0) << program.errors();
    return program.errors();
  }
  /// Returns how many of the three leftovers of killed processes are still there.
  int leftovers() const {
    int found = fs::exists(saved_ + "/.step-9.tmp-4711") + fs::exists(scratch_ / half_report_);
    return found + fs::is_symlink(saved_ + "/latest.tmp4711");
  }

  const std::string saved_ = tree_ + "/" + kSaved, half_report_ = "tree/report.json.tmp00000000000000004711";
};

TEST_F(NoLocks, SavesSucceedWithOneWarningAndRemoveNothing) {
  const std::string errors = errors_of(/*tp=*/2, /*steps=*/2, {}, DURABILITY_NO_LOCKS);
  const std::string warning = "warning: train: --save " + saved_ +
                              ": cannot be locked (No locks available); a second run that saves "
                              "there will not be refused\n";
  const size_t found = errors.find(warning);
  ASSERT_NE(found, std::string::npos) << errors;
  EXPECT_EQ(errors.find("cannot be locked", found + warning.size()), std::string::npos) << errors;
  EXPECT_EQ(leftovers(), 3);
  const fs::path newest = checkpoint::resolve(saved_);
  EXPECT_EQ(newest, saved_ + "/step-2");
  checkpoint::check(newest, /*needs_state=*/true);
  EXPECT_TRUE(fs::exists(tree_ + "/report.json"));
}

TEST_F(NoLocks, TheNextRunWithLocksRemovesWhatWasLeft) {
  EXPECT_EQ(leftovers(), 3);
  EXPECT_FALSE(contains(errors_of(/*tp=*/1, /*steps=*/1, {}, ""), "cannot be locked"));
  EXPECT_EQ(leftovers(), 0);
}

}  // namespace
}  // namespace shardwise::testing::no_locks_test
