// The largest group of ranks that share memory.
#pragma once

namespace shardwise::comm::shm {

/// A rank's control block has a mailbox for each (control.h).
inline constexpr int kMaxRanks = 240;

}  // namespace shardwise::comm::shm
