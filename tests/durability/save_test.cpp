// Checkpoints survive a kill or a loss of power after any system call of a save.
//
// A recorder logs the changes that a real run makes to its files. Every prefix of them is replayed on a model
// of a disk, with all, none and some of what was not synced. `make test-full` loads every state and draws
// more of them; `make test` loads those around the changes of names.
#include <fmt/format.h>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/checkpoint/directories.h"
#include "shardwise/model/decoder.h"
#include "tests/durability/recorded_run.h"
#include "tests/launch/program.h"

namespace shardwise::testing::durability_test {
namespace {

namespace fs = std::filesystem;

/// All combinations of what a crash does to contents and names; the last ones by random numbers.
std::vector<Crash> crashes() {
  std::vector<Crash> crashes{kProcessKill,
                             {Fate::lost, Fate::lost},
                             {Fate::lost, Fate::kept},
                             {Fate::kept, Fate::lost},
                             {Fate::zeroed, Fate::kept}};
  const uint64_t seeds = is_full() ? 40 : 4;
  for (uint64_t seed = 1; seed <= seeds; ++seed) crashes.push_back({Fate::mixed, Fate::mixed, seed});
  return crashes;
}

class SavedRun : public RecordedRun {
 protected:
  static void expect_no_temporaries(const fs::path& saved) {
    for (const auto& entry : fs::directory_iterator(saved))
      EXPECT_EQ(entry.path().filename().string().find(".tmp"), std::string::npos) << entry;
  }

  /// Returns the directory of the highest step, by its whole path; "" without one.
  static std::string newest_step(const Tree& tree) {
    int64_t newest = 0;  // the first save is that of step 1
    for (const auto& [path, node] : subtree(tree, kSaved)) {
      if (path.starts_with("step-")) newest = std::max(newest, int64_t{std::stoll(path.substr(5))});
    }
    return newest == 0 ? "" : std::string(kSaved) + "/" + checkpoint::step_name(newest);
  }
  /// Returns what a resumed run starts from: `latest`, and the newest step before the first save has set it.
  static std::string expected_start(const CrashState& state) {
    return state.latest.empty() ? newest_step(state.tree) : state.latest;
  }

  /// Expects that a run would find a complete checkpoint here, also after it has removed what was half
  /// written.
  void expect_resumable(const CrashState& state) {
    const std::string directory = scratch_ / "crashed";
    fs::remove_all(directory);
    put_tree(state.tree, directory);
    const fs::path saved = fs::path(directory) / kSaved;
    checkpoint::remove_stale(saved);
    const fs::path found = checkpoint::resolve(saved);
    EXPECT_EQ(found, directory + "/" + expected_start(state));
    checkpoint::check(found, /*needs_state=*/true);
    const model::DecoderWeights weights(tiny_byte_config(), comm::Group(), at::kFloat);
    checkpoint::load_weights(found, weights);
    expect_no_temporaries(saved);
    ++loaded_;
    without_latest_ += state.latest.empty();
  }

  /// Starts the program in the state; expects that it resumes and leaves nothing half written.
  void expect_resumes(const CrashState& state) {
    const std::string directory = scratch_ / "resumed";
    fs::remove_all(directory);
    put_tree(state.tree, directory);
    const std::string saved = directory + "/" + kSaved;
    Words more = saving(saved, /*keep=*/1);
    more.insert(more.end(), {"--resume", saved});
    Program program(training(/*tp=*/1, /*steps=*/5, more), {.environment = {"SHARDWISE_THREADS=1"}});
    EXPECT_EQ(exit_code(program.wait(kStartLimit)), 0) << program.errors();
    expect_no_temporaries(saved);
    ++resumed_;
  }

  /// Checks every state of the recorded run; starts the program in some.
  void expect_survives() {
    const Replay saves = replay(kSaved);
    const int start_every = is_full() ? 1 : 8;
    int boundaries = 0;
    const size_t states = saves.for_each_state(crashes(), [&](const CrashState& state) {
      if (expected_start(state).empty()) return;
      if (state.is_boundary || is_full()) expect_resumable(state);
      const bool may_start = state.is_boundary && state.crash.seed == 1;
      if (may_start && ++boundaries % start_every == 0) expect_resumes(state);
    });
    EXPECT_GT(loaded_, 0);
    EXPECT_GT(resumed_, 0);
    fmt::print("covered: {} states of a disk after {} operations, {} loaded, {} without latest, {} resumed\n",
               states, operations_.size(), loaded_, without_latest_, resumed_);
  }

  int loaded_ = 0, without_latest_ = 0, resumed_ = 0;
};

TEST_F(SavedRun, SurvivesACrashAfterEveryOperation) {
  run(training(/*tp=*/2, /*steps=*/3, saving(tree_ + "/" + kSaved, /*keep=*/2)));
  EXPECT_EQ(replay(kSaved).versions().size(), 6u) << "of each of three steps a directory and a link";
  expect_survives();
  EXPECT_GT(without_latest_, 0) << "the first save makes step-1 before latest";
}

// The run was killed between the rename of step-3 and of `latest`.
TEST_F(SavedRun, SurvivesACrashWhileItReplacesAStep) {
  const std::string saved = tree_ + "/" + kSaved;
  run(training(/*tp=*/1, /*steps=*/3, saving(saved, /*keep=*/2)));
  fs::remove(saved + "/latest");
  fs::create_symlink("step-2", saved + "/latest");
  Words more = saving(saved, /*keep=*/1);
  more.insert(more.end(), {"--resume", saved});
  run(training(/*tp=*/3, /*steps=*/4, more));
  EXPECT_EQ(std::count_if(operations_.begin(), operations_.end(),
                          [](const Operation& o) { return o.kind == OperationKind::exchange; }),
            1);
  expect_survives();
}

}  // namespace
}  // namespace shardwise::testing::durability_test
