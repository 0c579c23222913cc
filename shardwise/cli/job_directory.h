// A directory for what the ranks of one job write to each other, gone with the job.
#pragma once
#include <string>

#include "shardwise/comm/environment.h"
#include "shardwise/comm/group.h"

namespace shardwise::cli {

/// Made below TMPDIR by the process that launches the ranks, which outlives them however they end, and which
/// tells them by an environment variable; by rank 0 where somebody else has started them. Its maker removes
/// it with this.
class JobDirectory {
 public:
  /// From now on the launching process remembers a first SIGINT or SIGTERM (cli/signals.h), where launch does
  /// not take it: it has to tidy up. Errors: base::FileError where it cannot be made.
  explicit JobDirectory(const comm::LaunchContext& place);
  ~JobDirectory();
  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;

  /// Collective: rank 0's, on every rank.
  std::string path(const comm::Group& group) const;

 private:
  std::string path_;
  bool is_own_ = false;
};

}  // namespace shardwise::cli
