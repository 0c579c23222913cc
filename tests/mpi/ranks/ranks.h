// Helpers of the tests in mpi_ranks. Every rank runs the same tests in the same order.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "shardwise/comm/mpi/rendezvous.h"
#include "shardwise/launch/environment.h"

namespace shardwise::testing {

/// Returns an id of this rank's node; simulated nodes (SHARDWISE_NODES) have different ids.
uint64_t simulated_node_id(const launch::LaunchContext& context);

/// Returns options for a group of all ranks, with a new name on every call.
comm::mpi::ConnectOptions new_options(comm::mpi::Topology topology,
                                      std::chrono::milliseconds timeout = std::chrono::seconds(20));

/// Runs the rendezvous of comm::mpi::connect, for tests of the layers above it.
comm::mpi::Membership rendezvous(const comm::mpi::ConnectOptions& options);

/// Returns a group that all tests share; the first call creates it.
const comm::Group& group_of(comm::mpi::Topology topology);

/// Returns a shared-memory group of the ranks of this machine, also if it simulates several nodes.
comm::Group shared_group();

}  // namespace shardwise::testing
