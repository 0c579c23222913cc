// This process's rank and node in its job, read from the environment variables that the launcher sets.
//
// Reads and checks only: launch.h starts ranks, process_group.h connects them. The ranks of a node rendezvous
// under a name that every rank of the job, and no other job, derives from its environment (docs/adr/0009),
// and recognize each other by a secret.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/base/secret.h"

namespace shardwise::launch {

/// This process's rank, and the name under which the ranks of the job rendezvous.
struct LaunchContext {
  /// What started this process.
  enum class Launcher {
    self,      // started by hand: a job of one rank, or the process that will launch the ranks
    launcher,  // launch_ranks() set SHARDWISE_RANK, SHARDWISE_WORLD_SIZE, SHARDWISE_JOB and SHARDWISE_SECRET
    torchrun,  // its agent set RANK, WORLD_SIZE and the others
    mpirun,    // Open MPI's or Hydra's (MPICH, Intel MPI)
    srun,      // Slurm's, in a step of several tasks
  };
  int rank = 0;        // in [0, world_size)
  int world_size = 1;  // ranks of the job
  int local_rank = 0;  // among the ranks of this node
  int local_size = 1;  // ranks of this node
  int node = 0;        // index of this rank's node: ranks fill the nodes in order, as evenly as possible
  int nodes = 1;       // above 1 only if SHARDWISE_NODES makes one machine act as several nodes
  /// The job runs on several real nodes. No environment variable says which ranks share a node (mpirun fills
  /// the nodes or assigns ranks round-robin, as its user asks): ranks exchange this at the rendezvous.
  bool is_multi_node = false;
  std::string job;                     // the name of the job, for the rendezvous
  base::Secret secret;                 // from SHARDWISE_SECRET, which our launcher sets
  Launcher launcher = Launcher::self;  // what started this process

  /// Returns whether `ranks` (of the job, ascending) may be on different nodes.
  bool may_span_nodes(const std::vector<int>& ranks) const;
  /// Returns the node of a rank of the job. Not for jobs on several real nodes.
  int node_of(int rank_in_job) const;
};

/// Reads the variables of our launcher if they are set, else those of torchrun, mpirun or srun; else returns
/// a job of one rank. Errors: c10::ValueError if a variable is missing, not a number or contradicts another,
/// or if the ranks span several real nodes and were not started by Open MPI's mpirun.
LaunchContext launch_context_from_env();

/// Checks that the job has as many ranks as the product of the degrees of parallelism.
/// Errors: c10::ValueError if it has not.
void check_world_size(const LaunchContext& context, int64_t product_of_degrees);
}  // namespace shardwise::launch
