// The backend for ranks of several hosts, over Open MPI: entry point of the directory.
//
// Inside a host ranks share memory as ever (comm/shm); only what crosses hosts goes through MPI. Where CMake
// finds no MPI, no_mpi.cpp stands in for the rest of the directory.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/comm/group.h"
#include "shardwise/comm/node.h"
#include "shardwise/comm/timeout.h"

namespace shardwise::comm::mpi {

enum class Layout {
  by_host,  // shared memory inside hosts, MPI across, where all hosts hold as many ranks; else flat
  flat      // MPI between any two ranks: the bits of a sum are those of comm/shm
};

struct Options {
  std::string job;         // tells what else meets on a host apart
  std::string name;        // of the group, the same on its ranks
  std::vector<int> ranks;  // of the job, ascending, this one among them
  int rank;                // in the job, as its mpirun counts
  int world_size;
  uint64_t host = own_node();  // the same for ranks that may share memory
  Layout layout = Layout::by_host;
  std::chrono::milliseconds timeout = kTimeout;  // of every wait, MPI's start included
  int64_t message_bytes = int64_t{1} << 30;      // a longer message is sent in several: MPI counts in int
  int64_t round_bytes = int64_t{8} << 20;        // what a rank holds of each peer's terms during a sum
  Options(std::string job_name, std::string group_name, std::vector<int> members, int rank_in_job,
          int job_size)
      : job(std::move(job_name)),
        name(std::move(group_name)),
        ranks(std::move(members)),
        rank(rank_in_job),
        world_size(job_size) {}
};

/// Whether this build has MPI.
bool is_built_in();

/// Collective over `ranks`, at the first call over all ranks of the job, for whom MPI is started. Gives a
/// group in shared memory when all of them turn out to be on one host. Groups are made by one thread at a
/// time, those that share ranks in the same order on all of these.
/// Errors: base::CommError when ranks are missing at the timeout or name other groups; c10::ValueError when
/// MPI is not built in, another thread is making a group, the ranks were not started by Open MPI's mpirun, or
/// message_bytes is not from 1 to INT_MAX.
Group connect(const Options& options);

/// Collective over the job where MPI was started: ends it in good order, once all ranks have come, however
/// long they compute before. Messages that were sent and that their receivers do not take within the timeout
/// are lost. Afterward no group works: its calls throw base::CommError. Happens by itself in a process that
/// returns from main with 0; one that ends otherwise ends the job. A program that has started MPI itself
/// calls it before MPI_Finalize.
void finish();

}  // namespace shardwise::comm::mpi
