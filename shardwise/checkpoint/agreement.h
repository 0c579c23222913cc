// One rank's failure is every rank's: what a save needs so that nobody goes on, or waits, alone.
#pragma once
#include <functional>
#include <string>

#include "shardwise/comm/group.h"

namespace shardwise::checkpoint {

/// Collective. Calls `work`, then has all ranks say whether theirs threw.
/// Cost: one all_reduce of 8 bytes. `work` communicates nothing itself.
/// Errors: a rank's own is thrown again there; the others throw c10::DistBackendError naming `op` and the
/// rank.
void on_all_or_none(const comm::Group& group, const std::string& op, const std::function<void()>& work);

}  // namespace shardwise::checkpoint
