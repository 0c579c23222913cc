// Ranks as processes, for tests that kill or stop them: this test program run again, as one of the scenarios
// below.
//
// A fork without exec would copy the locks of this program's threads in whatever state they are.
#pragma once
#include <sys/types.h>

#include <string>

namespace shardwise::testing {

/// "all_reduce", "expose": that collective again and again until an error, which is printed.
/// "share": takes its share of the cores and prints `took 2 threads on 0 1`, its processors.
/// "leave": one barrier, then an orderly end. "exit": one barrier, then _exit. "idle": one barrier, then
/// nothing.
class Worker {
 public:
  Worker(const std::string& scenario, const std::string& job, int rank, int size, int timeout_ms);
  /// Kills it if it still runs.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// What it printed until its end.
  std::string output();

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
};

}  // namespace shardwise::testing
