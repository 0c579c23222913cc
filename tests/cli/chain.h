// A training run with injected faults, resumed from its last checkpoint after each; and checks of a save
// directory.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "shardwise/base/clock.h"
#include "tests/launch/program.h"
#include "tests/train/runs.h"

namespace shardwise::testing {

/// Waits until the save directory of `program` has a checkpoint; fails the test after a time limit.
void wait_for_checkpoint(const std::string& directory, const Program& program);
/// Returns the names in a save directory that are neither checkpoints nor the `latest` link.
std::set<std::string> half_written(const std::string& directory);

/// The observable result of a fault.
struct Ending {
  int status = 0;         // from waitpid
  double seconds = 0;     // from the fault until no process was left
  std::string errors;     // standard error
  bool hit_save = false;  // a save was in progress at the fault
};

class Chain {
 public:
  /// Prepares a small model over `tp` ranks, saved every `save_every` steps; `flags` are added to every
  /// start.
  Chain(int tp, int save_every, std::vector<std::string> flags = {},
        const config::Config& config = small_byte_config());

  /// Starts the run, or resumes it if there is a checkpoint.
  void start();
  /// Waits until the started program has logged `steps` steps.
  void wait_for_steps(size_t steps) const;
  /// Waits until the rank runs and returns its pid.
  pid_t pid_of_rank(int rank) const { return testing::pid_of_rank(rank, mark_); }
  pid_t pid() const { return program_->pid(); }

  /// Returns whether the started program is saving; leftovers of earlier starts do not count.
  bool is_saving() const;

  /// Sends the signal, the fault; returns false if there is no such process.
  bool send(pid_t pid, int signal);
  /// Waits for the end of the job, right after the fault; fails the test if processes or files are left.
  Ending end(double limit_s);

  /// Expects, after a fault in a run that saves after each step, that its newest checkpoint is complete,
  /// loads and is not older than the last whose save had ended.
  void expect_newest_checkpoint() const;

  /// Runs to the end and expects that every logged step since the first start has the bits of an undisturbed
  /// run's loss, and that the save directory has only checkpoints. Returns the number of compared steps.
  size_t expect_undisturbed_curve();

  int starts() const { return starts_; }

 private:
  std::vector<std::string> argv(const std::vector<std::string>& more) const;
  std::string log(int start) const { return scratch_ / ("log-" + std::to_string(start)); }
  std::map<int64_t, double> losses_of(const std::string& log) const;
  /// Returns the --resume flag for the saved checkpoint; empty if there is none.
  std::vector<std::string> resuming() const;
  void run_to_step(int64_t last, const std::vector<std::string>& more);

  Scratch scratch_;
  int tp_, save_every_;
  std::vector<std::string> flags_;
  std::string mark_;  // in the environment of every process of the run
  int starts_ = 0;
  // Names in the save directory and in /dev/shm before the start.
  std::set<std::string> stale_, named_memory_;
  bool fault_hit_save_ = false;
  std::unique_ptr<Program> program_;
};

}  // namespace shardwise::testing
