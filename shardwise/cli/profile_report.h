// The output of --profile: a Chrome trace of all ranks, and tables of the time of each op and layer.
#pragma once
#include <string>

#include "shardwise/base/profile.h"
#include "shardwise/comm/group.h"

namespace shardwise::cli {

/// Gathers the ranks' profiles. Rank 0 writes their trace to `file`, for chrome://tracing or Perfetto,
/// and logs for each kind of outermost op ("step", "prompt", "token") its mean time on each rank by op and by
/// layer, with the time spent waiting for other ranks and the host's, outside all ops within, apart.
/// Collective. Errors: base::FileError on rank 0 if the file cannot be written.
void report_profile(const std::string& command, const std::string& file, const base::Profile& profile,
                    const comm::Group& group);

/// Checks before any work that --profile can be written. Errors: c10::ValueError.
void check_profile_file(const std::string& command, const std::string& file);

}  // namespace shardwise::cli
