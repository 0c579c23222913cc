// The largest message that all_reduce reduces by the one-shot algorithm (all_reduce.cpp): measured on this
// machine, or the default.
//
// One-shot: every rank reads every input, with one synchronization. Two-shot: every rank reads and writes its
// slice of all inputs; fewer cache lines travel between the cores, but the ranks synchronize twice. Which is
// faster depends on whether each rank has a core of its own. All ranks of a group use rank 0's limit.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "shardwise/comm/symmetric_heap.h"

namespace shardwise::comm::shm {

using comm::OneShotLimit;
using comm::RanksOnCores;

/// The largest message that one-shot accepts: it is sent inside a control slot (control.h).
inline constexpr int64_t kMaxOneShotBytes = 4032;

/// Returns the limit that applies if nothing was measured.
OneShotLimit default_one_shot_limit(const RanksOnCores& on);
/// Returns the limit saved for this number of ranks on this machine, else the default. Logs a warning if a
/// saved limit cannot be used.
OneShotLimit one_shot_limit(const RanksOnCores& on);

/// Returns the file of the measured limit: shardwise/comm-<hash of the processor's name, the ranks and their
/// cores> in $XDG_CACHE_HOME or $HOME/.cache; "" if neither is an absolute path.
std::string one_shot_file(const RanksOnCores& on);
/// Saves a measured limit for groups connected later, overwriting an earlier one. one_shot_file must not be
/// "". Errors: base::FileError.
void save_one_shot_limit(const RanksOnCores& on, int64_t bytes);

}  // namespace shardwise::comm::shm
