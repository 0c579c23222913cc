// The backend for ranks of several nodes, over Open MPI: entry point of the directory.
//
// Ranks of one node share memory (comm/shm); only traffic between nodes uses MPI. If CMake finds no MPI,
// no_mpi.cpp replaces the rest of the directory.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/comm/group.h"
#include "shardwise/comm/rendezvous.h"

namespace shardwise::comm::mpi {

enum class Topology {
  hierarchical,  // shared memory within nodes, MPI between them if all nodes have equally many ranks; else
                 // flat
  flat           // MPI between any two ranks: reductions give the same bits as comm/shm
};

struct ConnectOptions {
  std::string job;         // distinguishes this job's rendezvous on a node from those of other jobs
  std::string name;        // of the group, the same on its ranks
  std::vector<int> ranks;  // of the job, ascending, this one among them
  int rank;                // in the job, as its mpirun counts
  int world_size;
  uint64_t node = node_id();  // the same for ranks that may share memory
  Topology topology = Topology::hierarchical;
  std::chrono::milliseconds timeout = kTimeout;  // of every wait, MPI's start included
  int64_t message_bytes = int64_t{1} << 30;      // a longer message is sent in chunks: MPI counts in int
  int64_t round_bytes = int64_t{8} << 20;        // receive buffer per peer during a reduction
  ConnectOptions(std::string job_name, std::string group_name, std::vector<int> members, int rank_in_job,
                 int job_size)
      : job(std::move(job_name)),
        name(std::move(group_name)),
        ranks(std::move(members)),
        rank(rank_in_job),
        world_size(job_size) {}
};

/// Returns whether this build has MPI.
bool is_built_in();

/// Creates a group. Collective over `ranks`; the first call starts MPI and is collective over all ranks of
/// the job. Returns a group in shared memory if all ranks are on one node. One thread at a time may create
/// groups, and ranks must create the groups that they share in the same order. Errors: base::CommError if
/// ranks are missing at the timeout or create a different group; c10::ValueError if MPI is not built in,
/// another thread is creating a group, the ranks were not started by Open MPI's mpirun, or message_bytes is
/// not from 1 to INT_MAX.
Group connect(const ConnectOptions& options);

/// Shuts MPI down cleanly if it was started. Collective over the job: waits for all ranks, up to twice the
/// timeout of the first group. Messages that were sent but not received within the timeout are lost.
/// Errors: base::CommError if a rank did not call it by then; the job ends when this process exits.
/// Afterward all calls of all groups throw base::CommError. Called automatically in a process that returns 0
/// from main; a process that exits otherwise aborts the job. A program that initialized MPI itself must call
/// this before MPI_Finalize.
void shutdown();

}  // namespace shardwise::comm::mpi
