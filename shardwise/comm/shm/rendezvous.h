// How the ranks of a host meet: by an abstract unix socket named after the user and the job.
//
// Rank 0 listens. Everybody sends it a region and a handle to its own process, as file descriptors, and gets
// those of all others back. Nothing has a name in any file system. Sockets are closed when the meeting is
// over.
#pragma once
#include <vector>

#include "shardwise/comm/shm/one_shot.h"
#include "shardwise/comm/shm/region.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::comm::shm {

struct Member {
  Region region;
  int pid;      // for messages; of the peer's own pid namespace
  Fd lifetime;  // readable once the process has ended; none for ranks of this process or where pidfds do not
                // exist
};

struct Meeting {
  std::vector<Member> members;  // by rank; this rank's own region with its file, the peers' without
  int cores = 1;                // that at least one of the ranks may run on
  OneShotLimit one_shot;        // the same on all ranks
};

/// Collective. Errors: base::CommError when a rank does not come in time or says something that contradicts
/// rank 0.
Meeting meet(const Options& options);
/// Errors: c10::ValueError for what no meeting can be of; to be asked before one.
void check_options(const Options& options);

}  // namespace shardwise::comm::shm
