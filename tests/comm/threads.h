// Ranks as plain threads with groups of their own, for tests in which ranks fail or come and go.
//
// on_ranks (tests/support/ranks.h) ends each body with a barrier and treats an error as the case's; here the
// body connects when and as it likes.
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

inline comm::shm::Options options(const std::string& job, int rank, int size, int timeout_ms = 20'000) {
  comm::shm::Options options(job, rank, size);
  options.timeout = std::chrono::milliseconds(timeout_ms);
  return options;
}

inline void on_threads(int ranks, const std::function<void(int rank, const std::string& job)>& body) {
  const std::string job = new_job();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);  // of this rank; and the thread sanitizer does not see how OpenMP's teams wait
      body(rank, job);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shardwise::testing
