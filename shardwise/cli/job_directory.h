// A temporary directory through which the ranks of one job exchange files; removed with the job.
#pragma once
#include <string>

#include "shardwise/comm/group.h"
#include "shardwise/launch/environment.h"

namespace shardwise::cli {

/// Created below TMPDIR by the process that launches the ranks, which outlives them and passes the path in an
/// environment variable; created by rank 0 if another launcher started the ranks. The process that created
/// the directory removes it in the destructor.
class JobDirectory {
 public:
  /// From now on the launching process defers its first SIGINT or SIGTERM (cli/signals.h) outside of
  /// launch(), so that it can remove the directory. Errors: base::FileError if the directory cannot be
  /// created.
  explicit JobDirectory(const launch::LaunchContext& context);
  ~JobDirectory();
  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;

  /// Returns rank 0's path on every rank. Collective.
  std::string path(const comm::Group& group) const;

 private:
  std::string path_;
  bool is_creator_ = false;
};

}  // namespace shardwise::cli
