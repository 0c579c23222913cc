// Open MPI jobs on this machine, run by Program.
#pragma once
#include <string>
#include <vector>

#include "tests/launch/program.h"

namespace shardwise::testing {

/// Returns an mpirun command that also runs as root and on fewer cores than ranks, and does not bind ranks to
/// cores.
inline std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& command) {
  std::vector<std::string> argv = {
      SHARDWISE_MPIRUN, "-n",  std::to_string(ranks), "--allow-run-as-root", "--oversubscribe",
      "--bind-to",      "none"};
  argv.insert(argv.end(), command.begin(), command.end());
  return argv;
}

/// Returns an environment that selects shared memory and sockets, which every machine has; `more` may
/// override it.
inline Program::Options environment(const std::vector<std::string>& more = {}) {
  std::vector<std::string> variables = {
      "OMP_NUM_THREADS=1", "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader,tcp",
      "OMPI_MCA_btl_vader_single_copy_mechanism=none",  // which containers forbid
      "OMPI_MCA_orte_base_help_aggregate=0",
      // libc and hwloc have no frame pointers, and what called them decides whether a leak is suppressed.
      "ASAN_OPTIONS=fast_unwind_on_malloc=0",
      "LSAN_OPTIONS=suppressions=" SHARDWISE_SOURCE_DIR "/tests/mpi/leaks:print_suppressions=0",
      // The thread sanitizer does not see Open MPI's atomics, so what Open MPI's threads write is no race.
      "TSAN_OPTIONS=ignore_noninstrumented_modules=1"};
  variables.insert(variables.end(), more.begin(), more.end());
  return {.environment = variables};
}

}  // namespace shardwise::testing
