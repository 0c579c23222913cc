// Ranks as plain threads, for tests in which ranks fail, or connect and leave at different times.
//
// on_ranks (tests/support/ranks.h) connects the group, ends each body with a barrier and fails the test on an
// error; here the body connects by itself.
#pragma once
#include <ATen/Parallel.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "shardwise/comm/shm/shm.h"

namespace shardwise::testing {

inline std::string new_job() {
  static std::atomic<int> jobs{0};
  return "comm-test-" + std::to_string(getpid()) + "-" + std::to_string(jobs++);
}

inline comm::shm::ConnectOptions options(const std::string& job, int rank, int size,
                                         int timeout_ms = 20'000) {
  comm::shm::ConnectOptions options(job, rank, size);
  options.timeout = std::chrono::milliseconds(timeout_ms);
  return options;
}

/// Runs `body` on `ranks` threads with the name of a new job.
inline void on_threads(int ranks, const std::function<void(int rank, const std::string& job)>& body) {
  const std::string job = new_job();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);  // per rank; also, the thread sanitizer does not understand OpenMP's waits
      body(rank, job);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shardwise::testing
