// How a command that needs ranks gets them: its own process, ranks that it starts, or those that torchrun,
// mpirun or srun has started.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shardwise/cli/flags.h"
#include "shardwise/comm/environment.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/timeout.h"
#include "shardwise/model/config.h"

namespace shardwise::cli {

/// What a command is told about its ranks beside their number.
struct RankOptions {
  // Of every wait for another rank.
  double timeout_s = std::chrono::duration<double>(comm::kTimeout).count();
};

std::chrono::milliseconds timeout_of(const RankOptions& options);

/// --timeout.
void add_timeout_flag(Flags& flags, RankOptions& options);
/// Errors: c10::ValueError naming `command`, the flag and the rule.
void validate(const std::string& command, const RankOptions& options);

/// Where this process stands; errors: c10::ValueError when somebody else has started another number of ranks
/// than `tp`, or they are on several hosts that nothing joins.
comm::LaunchContext place_for(int64_t tp);

/// A job of `tp` ranks of which this process is one, or which it is to start by running `argv` again.
struct RankJob {
  comm::LaunchContext place;
  int64_t tp;
  RankOptions options;
  std::vector<std::string> argv;
};

/// Runs `body(group)` on every rank of the job and returns the job's exit code. A process that was started by
/// hand becomes the launcher when tp is above 1. A base::CollectiveError of `body` is told here, by the first
/// rank, and is exit code 2. Errors: the others of `body`, after telling the other ranks.
int run_on_ranks(const RankJob& job, const std::function<void(const comm::Group&)>& body);

}  // namespace shardwise::cli
