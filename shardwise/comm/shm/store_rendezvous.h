// How ranks meet that know each other by a c10d store only: torch gives every group one of its own.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwise/comm/shm/rendezvous.h"

namespace shardwise::comm::shm {

/// Collective over the ranks that share `store`, in which they say where they are and read the name under
/// which they meet (rendezvous.h). Errors: c10::ValueError for a rank outside [0, size), and when they are
/// not on one host; base::CommError as meet.
Meeting rendezvous_via_store(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

}  // namespace shardwise::comm::shm
