// Rendezvous of ranks that share a c10d store: torch gives every process group a store of its own.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwise/comm/shm/rendezvous.h"

namespace shardwise::comm::shm {

/// Collective over the ranks that share `store`. Each rank stores its node, and rank 0 stores a random job
/// name, under which the ranks then rendezvous (rendezvous.h). Errors: c10::ValueError if a rank is outside
/// [0, size) or the ranks are on several nodes; base::CommError as rendezvous.
Rendezvous rendezvous_via_store(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

}  // namespace shardwise::comm::shm
