// The machine that `shardwise bench machine --save` measured on this host, for later runs of as many ranks.
//
// A file is for one number of ranks and threads, one processor, one instruction set and one version of the
// program and of PyTorch. Others have files of their own and are not found.
#pragma once
#include <optional>
#include <string>

#include "shardwise/base/measured_file.h"
#include "shardwise/comm/group.h"
#include "shardwise/plan/machine.h"

namespace shardwise::cli {

/// Ranks that compute on this host at once.
struct HostRanks {
  int64_t ranks;
  int threads;  // of each
};

/// Returns `ranks` ranks with the threads that they would have if this process started them.
HostRanks started_ranks(int64_t ranks);
/// Returns the ranks of `group`, which this process is one of, with the threads that they have.
HostRanks ranks_of(const comm::Group& group);

/// Returns the file of the machine that these ranks are.
base::MeasuredFile saved_machine_file(const HostRanks& ranks);

/// Returns the machine that was measured for these ranks; nullopt if none was, or with a warning if its file
/// is damaged.
std::optional<plan::Machine> saved_machine(const std::string& command, const HostRanks& ranks);

}  // namespace shardwise::cli
