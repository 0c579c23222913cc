// The protocol between benchmarks/run.py and a worker: a line holding a number of steps in, their seconds
// out.
//
// A worker is one rank and lives for the whole run, idle between its turns, so that contenders can be
// interleaved.
#pragma once
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

#include "shardwise/comm/join.h"

namespace shardwise::bench {

/// Joins the job that the environment describes, with one thread a rank unless SHARDWISE_THREADS says
/// otherwise.
inline comm::Group join(const comm::LaunchContext& place) {
  comm::Group group = comm::init_process_group(place);
  at::set_num_threads(comm::take_core_share(group));
  return group;
}

/// Serves turns until standard input ends: runs the steps, then prints `extra()` and the seconds they took.
inline void serve(const comm::Group& group, const std::function<void()>& step,
                  const std::function<std::string()>& extra) {
  for (int steps = 0; std::scanf("%d", &steps) == 1;) {
    group.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) step();
    group.barrier();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    std::printf("{\"seconds\": %.6f, %s}\n", elapsed.count(), extra().c_str());
    std::fflush(stdout);
  }
}

}  // namespace shardwise::bench
