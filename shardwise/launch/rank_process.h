// One rank as a process: how launch_ranks() starts it, its lines on standard error, and how it exited.
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/base/fd.h"
#include "shardwise/base/secret.h"

namespace shardwise::launch {

/// The settings that all ranks of a job share.
struct LaunchSettings {
  std::vector<std::string> argv;
  std::function<int()> main;  // see LaunchOptions
  std::string name;
  base::Secret secret;
  int ranks;
  sigset_t signal_mask;  // of the ranks; the launcher itself unblocks the termination signals
};

struct RankProcess {
  pid_t pid;
  base::Fd pidfd;           // readable once the process has exited; empty if the system gives none
  base::Fd standard_error;  // non-blocking; empty for rank 0, which writes to the launcher's standard error
};

/// Runs the job's program as `rank`. The process is killed when the calling thread ends. If it cannot execute
/// the program, it prints why and exits with code 127.
/// Errors: c10::Error if the system cannot create a pipe or a process.
RankProcess start_rank(const LaunchSettings& job, int rank);

/// Writes one line to standard error and overwrites the progress line that rank 0 may have left on the
/// terminal.
void print_line(const std::string& text);

/// Reads the standard error of one rank and prints its lines.
class RankLines {
 public:
  /// `source` is non-blocking; it is empty for rank 0, which writes to standard error itself.
  RankLines(int rank, base::Fd source) : rank_(rank), source_(std::move(source)) {}

  /// Returns the descriptor for poll; -1 after the end of the stream.
  int descriptor() const { return source_.get(); }
  /// Prints complete lines written so far, as many as a pipe holds, and parts of 64 KiB of a longer line.
  void forward();
  /// Prints the remaining lines, also an incomplete last one, and closes the stream.
  void forward_rest();
  /// Prints at most one more line and drops the rest: after a failure all surviving ranks report the same.
  void allow_one_more() { lines_left_ = 1; }

 private:
  void print(std::string_view line);

  int rank_;
  base::Fd source_;
  std::string pending_;  // a line without its end
  int lines_left_ = -1;  // -1: unlimited
};

/// Stands for waitpid's status if another part of this process has waited for the rank.
inline constexpr int kLostStatus = -1;

/// Describes waitpid's status or kLostStatus: "was killed by signal 9 (Killed)", "exited with code 3".
std::string describe_exit(int status);

}  // namespace shardwise::launch
