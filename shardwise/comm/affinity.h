// Which cores a rank computes on, and with how many threads.
//
// Counts and binds only; the caller gives the number of threads to ATen (at::set_num_threads). Ranks tell
// each other what they may use in join.h.
#pragma once
#include <sched.h>

#include <vector>

namespace shardwise::comm {

/// What a process may use: the processors (hardware threads) that it may run on (taskset, cpuset, a starter's
/// binding), the cores that they make up, and its cgroup's CPU quota in cores, rounded up. Plain bytes.
struct Allowance {
  cpu_set_t processors;
  int cores;
  int quota;
};

/// This process's, as it was given at the first call: binding does not change it.
/// Errors: c10::Error when hwloc cannot read the machine.
const Allowance& own_allowance();

/// Part `index` of `count` of the cores that `count` ranks may use alike.
struct CoreShare {
  int index = 0;
  int count = 1;
  int threads = 1;  // the same on every rank
};

/// `rank`'s share, from the allowances of all ranks of the host. Ranks with the same processors share them
/// out; who has been bound by its starter already shares with nobody, and nothing is bound twice.
/// Threads: SHARDWISE_THREADS where set, else OMP_NUM_THREADS (torchrun sets it), else the least number of
/// cores that a share comes to, at least 1. Errors: c10::ValueError when the variable is no number above 0.
CoreShare share_out(const std::vector<Allowance>& allowances, int rank);

/// Binds this process, and the threads it will start, to its share: neighboring cores, disjoint from those
/// of the other shares. Binds nothing when the shares outnumber the cores, or are one.
/// Errors: c10::Error when the system refuses, and those of own_allowance.
void bind_to(const CoreShare& share);

/// Errors: c10::ValueError when a variable that sets the threads is no number above 0.
void check_thread_variables();

}  // namespace shardwise::comm
