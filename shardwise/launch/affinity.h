// Chooses the cores that a rank computes on and its number of threads.
//
// Counts and binds only; the caller passes the number of threads to ATen (at::set_num_threads).
// process_group.h exchanges the ranks' available CPUs.
#pragma once
#include <sched.h>

#include <string>
#include <vector>

namespace shardwise::launch {

/// The CPUs that a process may use: the processors (hardware threads) that it may run on (taskset, cpuset, a
/// launcher's binding), the number of cores that they belong to, and its cgroup's CPU quota in cores, rounded
/// up. Trivially copyable.
struct AvailableCpus {
  cpu_set_t processors;
  int cores;
  int quota;
};

/// Returns the CPUs that this process had at the first call: later binding does not change them.
/// Errors: c10::Error if hwloc cannot read the machine.
const AvailableCpus& available_cpus();

/// Returns the CPU quota of this process's cgroup, by which containers are often limited: the smallest over
/// the process's cgroup and its ancestors; very large if there is none. Reads the files of cgroup versions 1
/// and 2 below `root`. A container may see its own group as the root.
double cpu_quota(const std::string& cgroups = "/proc/self/cgroup",
                 const std::string& root = "/sys/fs/cgroup");

/// Part `index` of `count` of the cores that `count` ranks may all use.
struct CoreShare {
  int index = 0;
  int count = 1;
  int threads = 1;  // the same on every rank
};

/// Returns the share of `rank`, given the available CPUs of all ranks of the node. Ranks with the same
/// processors divide them; a rank that its launcher has already bound keeps its binding. Threads:
/// SHARDWISE_THREADS if set, else OMP_NUM_THREADS (torchrun sets it), else the smallest number of cores of
/// any share, at least 1. Errors: those of check_thread_variables.
CoreShare share_out(const std::vector<AvailableCpus>& available, int rank);

/// Binds this process, and the threads that it will start, to its share: neighboring cores, disjoint from the
/// cores of the other shares. Does nothing if there is one share, or more shares than cores. Errors:
/// c10::Error if the system refuses, and those of available_cpus.
void bind_to(const CoreShare& share);

/// Checks the variables that set the number of threads.
/// Errors: c10::ValueError if one is not an integer from 1 to 4 times the number of usable cores.
void check_thread_variables();

}  // namespace shardwise::launch
