// Saves on a disk that is slow or fails: training goes on while files are synced, and none is published
// before.
#include "shardwise/base/clock.h"
#include "shardwise/checkpoint/checkpoint.h"
#include "tests/durability/recorded_run.h"
#include "tests/launch/program.h"
#include "tests/support/error_text.h"

namespace shardwise::testing::held_sync_test {
namespace {

namespace fs = std::filesystem;
using test::contains;

class HeldSync : public RecordedRun {
 protected:
  /// A run of 6 steps that saves after steps 4 and 6.
  Words run_of(int tp) const {
    return training(tp, /*steps=*/6, {"--save", saved_, "--save-every", "4", "--log", log_});
  }
  int64_t logged_steps() const {
    const std::string lines = fs::exists(log_) ? test::contents(log_) : "";
    return std::max<int64_t>(0, std::count(lines.begin(), lines.end(), '\n') - 1);  // without planned memory
  }
  std::vector<std::string> names_in_saved() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(saved_)) names.push_back(entry.path().filename());
    return names;
  }

  const std::string saved_ = tree_ + "/saved", log_ = scratch_ / "log";
};

TEST_F(HeldSync, StepsGoOnWhileTheSaveBeforeThemIsSynced) {
  const std::string synced_after = scratch_ / "disk_is_ready";
  Program program(run_of(/*tp=*/2), {.environment = {std::string("LD_PRELOAD=") + DURABILITY_HELD_SYNC,
                                                     "SYNC_AFTER=" + synced_after, "SHARDWISE_THREADS=1"}});
  for (const base::Stopwatch watch; logged_steps() < 6 && watch.seconds() < kStartLimit;) ::usleep(1000);
  EXPECT_EQ(logged_steps(), 6) << "steps 5 and 6 must not wait for the save of step 4";
  EXPECT_FALSE(fs::exists(saved_ + "/step-4"));
  EXPECT_FALSE(fs::is_symlink(saved_ + "/latest"));
  scratch_.put("disk_is_ready", "");
  EXPECT_EQ(exit_code(program.wait(kStartLimit)), 0) << program.errors();
  for (const char* step : {"/step-4", "/step-6"}) checkpoint::check(saved_ + step, /*needs_state=*/true);
  EXPECT_EQ(checkpoint::resolve(saved_), saved_ + "/step-6");
}

TEST_F(HeldSync, AFailedSyncEndsTheRunAndPublishesNothing) {
  Program program(run_of(/*tp=*/2), {.environment = {std::string("LD_PRELOAD=") + DURABILITY_HELD_SYNC,
                                                     "SHARDWISE_THREADS=1"}});
  EXPECT_EQ(exit_code(program.wait(kStartLimit)), 1) << program.errors();
  EXPECT_PRED2(contains, program.errors(), "optimizer.safetensors: Input/output error");
  EXPECT_EQ(names_in_saved(), Words{".lock"}) << "a step, a link or files half written";
}

}  // namespace
}  // namespace shardwise::testing::held_sync_test
