// How the ranks of a group find each other in the job, and who of them is where.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <vector>

#include "shardwise/comm/mpi/backoff.h"
#include "shardwise/comm/mpi/mpi.h"
#include "shardwise/comm/mpi/process.h"

namespace shardwise::comm::mpi {

/// Communicators live until MPI's end (freeing one is collective, and a Group may die on one rank alone), and
/// there are not many of them: only a group that turns out to need them has them made.
struct Meeting {
  Process* process = nullptr;
  int rank = 0;                      // in the group
  std::vector<uint64_t> hosts;       // of its ranks
  Backoff::Policy policy;            // by how many of them share this machine's processors
  MPI_Comm data = MPI_COMM_NULL;     // collectives, tag 0; payloads of messages, the others
  MPI_Comm control = MPI_COMM_NULL;  // notices (channel.h), tag 0; envelopes of messages, their tag + 1
  int size() const { return static_cast<int>(hosts.size()); }
};

/// Collective over the group: who is where; no communicators yet. Errors: base::CommError when a rank does
/// not come in time, or comes to another group.
Meeting greet(Process& process, const Options& options);

/// Collective over the group. Errors: base::CommError when MPI makes none, or a rank stops meanwhile.
void make_communicators(Meeting& meeting, const Options& options);

}  // namespace shardwise::comm::mpi
