// The rendezvous of a group over MPI: its ranks exchange their nodes and create communicators.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <vector>

#include "shardwise/base/secret.h"
#include "shardwise/comm/mpi/mpi.h"
#include "shardwise/comm/mpi/process.h"
#include "shardwise/comm/mpi/transfers.h"

namespace shardwise::comm::mpi {

/// A rank's view of its group. Communicators live until MPI is shut down: freeing one is collective, and a
/// Group may be destroyed on one rank alone. MPI has a limited number of them, so only a group that needs
/// them creates them.
struct Membership {
  Process* process = nullptr;
  int rank = 0;                       // in the group
  std::vector<uint64_t> nodes;        // of its ranks
  std::vector<base::Secret> secrets;  // of its ranks: that of a node's first rank is the node's
  Backoff::Policy policy;             // depends on how many of its ranks share this machine's processors
  MPI_Comm data = MPI_COMM_NULL;      // collectives use tag 0; payloads of messages, the other tags
  MPI_Comm control = MPI_COMM_NULL;   // control messages (channel.h) use tag 0; envelopes, their tag + 1
  int size() const { return static_cast<int>(nodes.size()); }
};

/// Exchanges the ranks' nodes; creates no communicators. Collective over the group. Errors: base::CommError
/// if a rank does not join in time or creates a different group.
Membership exchange_peer_info(Process& process, const ConnectOptions& options);

/// Creates the group's communicators. Collective over the group. Errors: base::CommError if MPI cannot create
/// them or a rank stops meanwhile.
void make_communicators(Membership& membership, const ConnectOptions& options);

}  // namespace shardwise::comm::mpi
