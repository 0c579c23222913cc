// A rank of mpi_ranks: what its tests share. Every rank runs the same tests in the same order.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "shardwise/comm/environment.h"
#include "shardwise/comm/mpi/rendezvous.h"

namespace shardwise::testing {

/// What SHARDWISE_NODES pretends is as good as real hosts.
uint64_t own_pretended_host(const comm::LaunchContext& place);

/// A group of all ranks, by a name that is new on every call.
comm::mpi::Options new_options(comm::mpi::Layout layout,
                               std::chrono::milliseconds timeout = std::chrono::seconds(20));

/// What comm::mpi::connect begins with, for tests of what stands on it.
comm::mpi::Meeting meet(const comm::mpi::Options& options);

/// The same for all tests; made at the first call.
const comm::Group& group_of(comm::mpi::Layout layout);

/// The ranks of this machine in shared memory, hosts pretended or not.
comm::Group shared_group();

}  // namespace shardwise::testing
