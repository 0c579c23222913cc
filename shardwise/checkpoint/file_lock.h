// The wait for the lock of a file or a directory (flock). Any process that may read it can hold its lock,
// also one of another user, so every wait ends.
#pragma once
#include <chrono>

#include "shardwise/base/fd.h"

namespace shardwise::checkpoint {

/// Takes the exclusive lock, which lasts until all copies of the descriptor are closed. Returns false with
/// errno EWOULDBLOCK if another process still has it after `max_wait`, and with another errno if the file
/// system has no locks.
bool lock_within(const base::Fd& file, std::chrono::milliseconds max_wait);

}  // namespace shardwise::checkpoint
