// One rank as a process: how launch_ranks() starts it, and how it exited.
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "shardwise/base/fd.h"

namespace shardwise::launch {

/// The settings that all ranks of a job share.
struct LaunchSettings {
  std::vector<std::string> argv;
  std::string name;
  int ranks;
  sigset_t signal_mask;  // of the ranks; the launcher itself blocks signals
};

struct RankProcess {
  int rank;
  pid_t pid;
  base::Fd standard_error;  // non-blocking; empty for rank 0, which writes to the launcher's standard error
};

/// Runs this program again as `rank`. The process is killed when the calling thread ends.
/// Errors: c10::Error if the system cannot create a pipe or a process.
RankProcess start_rank(const LaunchSettings& job, int rank);

/// Describes waitpid's status: "was killed by signal 9 (Killed)", "exited with code 3".
std::string describe_exit(int status);

}  // namespace shardwise::launch
