// Where this process stands in its job, as told by whoever started it through environment variables.
//
// Reads and checks only: starting ranks is launch.h, joining them is join.h. The ranks of a host meet at a
// name that all of them, and no other job, find in their environment (docs/adr/0009).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace shardwise::comm {

/// This process's rank, and the name at which the ranks of the job meet.
struct LaunchContext {
  enum class Launcher {
    self,      // started by hand: a job of one, or the process that is to launch the ranks
    launcher,  // launch() set SHARDWISE_RANK, SHARDWISE_WORLD_SIZE and SHARDWISE_JOB
    torchrun,  // its agent set RANK, WORLD_SIZE and the others
    mpirun,    // Open MPI's or Hydra's (MPICH, Intel MPI)
    srun,      // Slurm's, in a step of several tasks
  };
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  int host = 0;   // of `hosts`: ranks fill them in order, as evenly as possible
  int hosts = 1;  // above 1 where SHARDWISE_NODES makes one machine play several
  /// Over several real hosts. No environment tells which ranks share one (mpirun fills hosts or deals to them
  /// in turn, as its user likes): they find out when they meet.
  bool is_multi_node = false;
  std::string job;
  Launcher launcher = Launcher::self;

  /// Whether some of these ranks of the job (ascending) may be on different hosts.
  bool may_span_nodes(const std::vector<int>& ranks) const;
  /// The host that a rank of the job is on, unless the job is spread.
  int node_of(int rank_in_job) const;
};

/// Our launcher's variables where set, else torchrun's, mpirun's or srun's, else a job of one.
/// Errors: c10::ValueError when one is missing, no number or contradicts another, or the ranks span several
/// real hosts and were not started by Open MPI's mpirun.
LaunchContext launch_context_from_env();

/// Errors: c10::ValueError unless `place` has as many ranks as the degrees of parallelism multiply to.
void check_world_size(const LaunchContext& place, int64_t product_of_degrees);

/// The value of a variable that counts something; `fallback` where it is not set.
/// Errors: c10::ValueError when it is no whole number or below `least`.
int count_from_environment(const char* variable, int least, int fallback);

}  // namespace shardwise::comm
