// The protocol between benchmarks/run.py and a worker: the worker reads a line with a number of steps, runs
// them, and prints their seconds.
//
// A worker is one rank and lives as long as the benchmark. It is idle between its repetitions, so that
// candidates can be interleaved.
#pragma once
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

#include "shardwise/launch/process_group.h"

namespace shardwise::bench {

/// Joins the job that the environment describes, with one thread per rank unless SHARDWISE_THREADS is set.
inline comm::Group join(const launch::LaunchContext& context) {
  comm::Group group = launch::init_process_group(context);
  at::set_num_threads(launch::bind_to_core_share(group));
  return group;
}

/// Serves requests until standard input ends: runs the steps, then prints their seconds and `extra()`.
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
