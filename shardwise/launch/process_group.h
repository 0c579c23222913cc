// Makes a started process a rank: creates its process groups and binds it to its share of the cores.
#pragma once
#include <string>
#include <vector>

#include "shardwise/comm/group.h"
#include "shardwise/launch/environment.h"

namespace shardwise::launch {

/// Creates the group of `ranks` (ranks of the job, ascending, this one among them). Collective over `ranks`;
/// one rank gets a group of one at once. `name` distinguishes the group from the job's other groups. Mesh
/// makes the groups of its axes with this function. Ranks of one node share memory; ranks of several nodes,
/// also simulated ones, communicate over MPI (docs/adr/0017), which the first such call starts: that call is
/// collective over the job. `job`: the group of all ranks; if it shares memory, failures of any of them are
/// this group's too, and errors name ranks as the job does. Errors: c10::ValueError if the ranks are on
/// several nodes and cannot be connected (see check_nodes); base::CommError if a rank does not join within
/// the timeout.
comm::Group connect_group(const LaunchContext& context, const std::string& name,
                          const std::vector<int>& ranks, std::chrono::milliseconds timeout = comm::kTimeout,
                          const comm::Group* job = nullptr);

/// Creates the group of all ranks of the job. Errors: those of connect_group.
comm::Group init_process_group(const LaunchContext& context,
                               std::chrono::milliseconds timeout = comm::kTimeout);

/// Checks, before any rank starts, that init_process_group can connect `ranks` ranks.
/// Errors: c10::ValueError if `context` has several nodes and the ranks were not started by mpirun, or this
/// build has no MPI.
void check_nodes(const LaunchContext& context, int64_t ranks);

/// Shuts MPI down cleanly if the job uses it (collective over the job), otherwise does nothing. For a process
/// that exits without returning from main, where MPI would abort the job. Groups that span nodes cannot be
/// used afterward. Errors: base::CommError if a rank is more than two timeouts late.
void shutdown();

/// Binds this process to its share of the cores of its machine, which it divides with the other ranks of the
/// group there, and returns the number of threads to compute with, the same on all machines. Collective; call
/// it before any computation. Errors: c10::ValueError if SHARDWISE_THREADS or OMP_NUM_THREADS, which set the
/// number of threads, is not an integer above 0; c10::Error if the system refuses.
int bind_to_core_share(const comm::Group& group);

/// Returns whether some ranks of the group share cores, when each computes in `threads` threads. Collective.
bool is_oversubscribed(const comm::Group& group, int threads);

}  // namespace shardwise::launch
