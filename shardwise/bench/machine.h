// Measures the rates of this machine's ranks, from which plan/ computes the times of runs on it.
//
// The same code computes here as in a run: the products, attention and elementwise kernels of training, with
// as many threads. All ranks call at once, as in a run, because they share caches and memory.
#pragma once
#include <functional>

#include "shardwise/bench/timing.h"
#include "shardwise/comm/group.h"
#include "shardwise/plan/machine.h"

namespace shardwise::bench {

/// Returns a machine with the memory of this one, which `ranks` ranks divide, and without rates. `source`
/// says where the figures are from.
plan::Machine memory_of_machine(int64_t ranks, const std::string& source);

/// Called with the number of measurements that are done, of how many, and with the present one's name.
using OnMachineProgress = std::function<void(size_t done, size_t measurements, const std::string& name)>;

/// Measures for about `seconds` at each size of each operation. The devices of the machine are the ranks of
/// `group`, of one node; `source` says where the figures are from. Rank 0 calls `on_progress`. Collective.
plan::Machine measure_machine(double seconds, const std::string& source, const comm::Group& group,
                              const OnMachineProgress& on_progress);

}  // namespace shardwise::bench
