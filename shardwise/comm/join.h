// How a started process becomes a rank: it meets the others and takes its share of the cores.
#pragma once
#include <string>
#include <vector>

#include "shardwise/comm/environment.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/timeout.h"

namespace shardwise::comm {

/// Collective over `ranks` (of the job, ascending, this one among them): their group, which `name` tells from
/// the job's others. What Mesh makes its axes' groups of. One rank: a group of one, at once. Ranks of one
/// host share memory; those of several, pretended ones too, are joined by MPI (docs/adr/0017), whose start at
/// the first such call is collective over the job. Errors: c10::ValueError when they are on several hosts and
/// cannot be joined: see check_nodes. base::CommError when one does not come in time.
Group connect(const LaunchContext& place, const std::string& name, const std::vector<int>& ranks,
              std::chrono::milliseconds timeout = kTimeout);

/// The group of all ranks of the job. Errors: those of connect.
Group init_process_group(const LaunchContext& place, std::chrono::milliseconds timeout = kTimeout);

/// What init_process_group would refuse, before any rank starts: `ranks` of them, as `place` is told.
/// Errors: c10::ValueError when `place` is of several hosts, and mpirun has not started the ranks or MPI is
/// not built in.
void check_nodes(const LaunchContext& place, int64_t ranks);

/// Collective over the job where MPI joins it, nothing elsewhere: ends this rank's part in good order, before
/// a process that leaves without returning from main (mpi/mpi.h). No group of several hosts works afterward.
void finish();

/// Collective, before the process computes anything: binds it to its share of the cores of its machine
/// (affinity.h), with those of the group's ranks that run there, and returns the number of threads to compute
/// with, the same on all machines.
/// Errors: those of share_out and bind_to.
int take_core_share(const Group& group);

}  // namespace shardwise::comm
