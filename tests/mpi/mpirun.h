// Jobs of Open MPI on this machine, as Program runs them.
#pragma once
#include <string>
#include <vector>

#include "tests/launch/program.h"

namespace shardwise::testing {

/// `mpirun -n ranks ... command`: over shared memory and sockets, which every machine has; by root too, on
/// fewer cores than ranks, and without binding ranks to cores.
inline std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& command) {
  std::vector<std::string> argv = {
      SHARDWISE_MPIRUN, "-n",  std::to_string(ranks), "--allow-run-as-root", "--oversubscribe",
      "--bind-to",      "none"};
  for (const auto& [name, parameter] : std::vector<std::pair<std::string, std::string>>{
           {"pml", "ob1"},
           {"btl", "self,vader,tcp"},
           {"btl_vader_single_copy_mechanism", "none"},  // which containers forbid
           {"orte_base_help_aggregate", "0"}}) {
    argv.insert(argv.end(), {"--mca", name, parameter});
  }
  argv.insert(argv.end(), command.begin(), command.end());
  return argv;
}

/// What a job adds to this process's variables; none is left of a job that runs this test itself.
inline Program::Options environment(std::vector<std::string> more = {}) {
  more.push_back("OMP_NUM_THREADS=1");
  return {.environment = std::move(more)};
}

}  // namespace shardwise::testing
