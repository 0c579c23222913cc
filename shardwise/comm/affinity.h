// Which cores a rank computes on, and with how many threads.
//
// Counts and binds only; the caller gives the number of threads to ATen (at::set_num_threads).
#pragma once
#include "shardwise/comm/environment.h"

namespace shardwise::comm {

/// Cores that this process may use: within its allowed set (taskset, cpuset) and its cgroup's CPU quota,
/// rounded up. What the process was given at its first call: binding does not change it.
int usable_cores();

/// SHARDWISE_THREADS where set, else OMP_NUM_THREADS (torchrun sets it), else max(1, usable cores / ranks of
/// this host): the same on every rank. Errors: c10::ValueError when the variable is no number above 0.
int threads_per_rank(int local_size);

/// Binds this process, and the threads it will start, to its own run of neighbouring cores, disjoint from
/// those of the host's other ranks. Returns false and binds nothing when the ranks outnumber the usable
/// cores, and for one rank.
bool bind_to_cores(const Place& place);

}  // namespace shardwise::comm
