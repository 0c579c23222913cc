// Rendezvous of the ranks of one node, at an abstract unix socket named after the user and the job.
//
// Rank 0 listens. Every rank sends it a memory region and a pidfd of its own process, as file descriptors,
// and receives those of all peers. Nothing has a name in any file system. The sockets are closed at the end
// of the rendezvous.
#pragma once
#include <vector>

#include "shardwise/comm/shm/one_shot.h"
#include "shardwise/comm/shm/region.h"
#include "shardwise/comm/shm/shm.h"

namespace c10d {
class Store;
}

namespace shardwise::comm::shm {

struct Member {
  Region region;
  int pid;   // for error messages; valid in the peer's own pid namespace
  Fd pidfd;  // readable once the process has exited; empty for ranks of this process, or without kernel
             // support
};

/// The result of a rendezvous.
struct Rendezvous {
  std::vector<Member> members;  // by rank; the local region keeps its file open, those of the peers do not
  int cores = 1;                // the number of cores that at least one of the ranks may run on
  OneShotLimit one_shot;        // equal on all ranks
};

/// Collective. Errors: base::CommError if a rank times out, or if its rank or size contradicts rank 0's.
Rendezvous rendezvous(const Options& options);
/// Rendezvous of ranks that share a c10d store: torch gives every process group a store of its own.
/// Collective over them. Each rank stores its node, and rank 0 stores a random job name, under which the
/// ranks then rendezvous (rendezvous.h). Errors: c10::ValueError if a rank is outside [0, size) or the ranks
/// are on several nodes; base::CommError as rendezvous.
Rendezvous rendezvous_via_store(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);
/// Checks `options` before a rendezvous. Errors: c10::ValueError.
void check_options(const Options& options);

}  // namespace shardwise::comm::shm
