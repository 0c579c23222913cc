// How a command that needs ranks gets them: its own process, ranks that it starts, or those that torchrun has
// started.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shardwise/comm/environment.h"
#include "shardwise/comm/group.h"

namespace shardwise::cli {

/// Where this process stands; errors: c10::ValueError when somebody else has started another number of ranks
/// than `tp`.
comm::Place place_for(int64_t tp);

/// Runs `body(group)` on every rank of a job of `tp` ranks and returns the job's exit code. A process that
/// was started by hand becomes the launcher of `argv` when tp is above 1. Errors: those of `body`, after
/// telling the other ranks.
int run_on_ranks(const comm::Place& place, int64_t tp, const std::vector<std::string>& argv,
                 const std::function<void(const comm::Group&)>& body);

}  // namespace shardwise::cli
