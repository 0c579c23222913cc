// Starts the ranks of a job on this node, monitors them and terminates the job as a whole.
//
// A rank reads its rank and job from the environment (environment.h) and connects to the others through their
// transport (process_group.h); the launcher and the ranks exchange only signals and standard error.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace shardwise::launch {

/// The exit code of a usage error.
inline constexpr int kUsageErrorExitCode = 2;
/// The exit code of a rank that completed its work and found that a check does not pass. It is not a failure:
/// the other ranks complete their work.
inline constexpr int kCheckFailedExitCode = 3;

/// How launch_ranks starts the ranks.
struct LaunchOptions {
  /// Called before a rank is started, when the signals of this process are recorded.
  std::function<void()> before_start = {};
  /// Does what this program does with `argv`, and returns its exit code; throws nothing. If it is set and the
  /// process has one thread, ranks are copies of the process that call it (docs/adr/0032): they need not load
  /// libtorch again, 0.3 s. Otherwise they execute the program.
  std::function<int()> main = {};
};

/// Checks how many ranks launch_ranks is to start. Errors: c10::ValueError if `ranks` is not from 1 to
/// comm::shm::kMaxRanks.
void check_started_ranks(int64_t ranks);

/// Runs this program again, once per rank, waits until all ranks have exited and returns the exit code of the
/// job: 0 if every rank returned 0; 3 if one returned 3 and none failed; 2 if one returned 2 (a usage error);
/// 1 for every other failure; 128 plus the signal's number if this process received SIGINT, SIGTERM or
/// SIGHUP.
///
/// Rank 0 has this process's standard streams. The other ranks have an empty standard input, their standard
/// output is discarded, and their lines on standard error are printed as `[rank 1] line`. The first rank that
/// fails ends the job: the other ranks have one second to report what they waited for (one line each; a
/// stopped rank is continued for that), then get SIGTERM, then SIGKILL, all in under 2 s. A last line on
/// standard error names the rank and how it ended, unless all ranks returned 2: they have printed the error
/// already. Ranks are killed when the calling thread ends, however it ends: call this from the main thread.
/// The process may have other threads.
///
/// From the start to the return, this function handles the termination signals of this process; then their
/// former handlers are back. A program that remembers signals for later checks in `before_start` that none
/// has arrived.
///
/// Errors: those of check_started_ranks and of `before_start`; c10::Error if the system cannot start more
/// processes.
int launch_ranks(int ranks, const std::vector<std::string>& argv, const LaunchOptions& options = {});

}  // namespace shardwise::launch
