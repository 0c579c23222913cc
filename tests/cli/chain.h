// One training run that is hurt again and again, and goes on each time from its last checkpoint; and what is
// asked of the save directory of any job that is hurt.
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

/// Waits until a checkpoint stands in the save directory of `program`, and fails the test when none comes.
void wait_for_checkpoint(const std::string& directory, const Program& program);
/// Names in a save directory that are neither a checkpoint's nor the link to the last one.
std::set<std::string> half_written(const std::string& directory);

/// What is to be seen of a fault from outside.
struct Ending {
  int status = 0;         // waitpid's
  double seconds = 0;     // from the fault until no process was left
  std::string said;       // on standard error
  bool hit_save = false;  // a save was half written when the fault came
};

class Chain {
 public:
  /// A small model over `tp` ranks, saved every `save_every` steps; `flags` are added to every start.
  Chain(int tp, int save_every, std::vector<std::string> flags = {},
        const model::Config& config = small_byte_config());

  /// Begins the run, or resumes it where a checkpoint stands.
  void start();
  /// Waits until the started program has logged `steps` steps.
  void wait_for_steps(size_t steps) const;
  /// Waits for the rank to be there.
  pid_t pid_of_rank(int rank) const { return testing::pid_of_rank(rank, mark_); }
  pid_t pid() const { return program_->pid(); }

  /// Whether the started program has a save half written; what an earlier one left does not count.
  bool is_saving() const;

  /// The fault: false where there is no such process.
  bool send(pid_t pid, int signal);
  /// To be called right after the fault. Waits for the end, and fails the test where something is left.
  Ending end(double limit_s);

  /// Fails the test unless every step that was logged since the first start has the loss, bit for bit, of a
  /// run that nobody disturbed, and the save directory holds nothing but checkpoints after a last start.
  /// Returns how many steps were compared.
  size_t expect_undisturbed_curve();

  int starts() const { return starts_; }

 private:
  std::vector<std::string> argv(const std::vector<std::string>& more) const;
  std::string log(int start) const { return scratch_ / ("log-" + std::to_string(start)); }
  std::map<int64_t, double> losses_of(const std::string& log) const;
  /// The flag that continues from what is saved; none where nothing is.
  std::vector<std::string> resuming() const;
  void run_to_step(int64_t last, const std::vector<std::string>& more);

  Scratch scratch_;
  int tp_, save_every_;
  std::vector<std::string> flags_;
  std::string mark_;  // in the environment of every process of the run
  int starts_ = 0;
  // What lay in the save directory and in /dev/shm before the start.
  std::set<std::string> stale_, named_memory_;
  bool fault_hit_save_ = false;
  std::unique_ptr<Program> program_;
};

}  // namespace shardwise::testing
