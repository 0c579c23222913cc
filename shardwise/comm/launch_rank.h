// One rank as a process: how launch() starts it and how it ended.
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "shardwise/base/fd.h"

namespace shardwise::comm {

/// What all ranks of a job have in common.
struct Job {
  std::vector<std::string> argv;
  std::string name;
  int ranks;
  sigset_t signal_mask;  // of the ranks: the launcher blocks signals for itself
};

struct RankProcess {
  int rank;
  pid_t pid;
  base::Fd standard_error;  // non-blocking; none for rank 0, which has the launcher's own
};

/// Executes this program again as `rank`, tied to the life of the calling thread.
/// Errors: c10::Error when the system refuses.
RankProcess start_rank(const Job& job, int rank);

/// "was killed by signal 9 (Killed)", "exited with code 3"; from waitpid's status.
std::string how_it_ended(int status);

}  // namespace shardwise::comm
