// Ranks as processes, for tests that kill, stop or outlast them: this test program run again, as one of the
// scenarios below.
//
// A fork without exec would copy the locks of this program's threads in whatever state they are.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "shardwise/comm/group.h"

namespace shardwise::testing {

/// "all_reduce", "begun_sum", "share_shard": that collective again and again until an error, which is
/// printed. "share": takes its share of the cores and prints `took 2 threads on 0 1`, its processors.
/// "leave": one barrier, then an orderly end. "exit": one barrier, then _exit. "idle": one barrier, then
/// nothing.
/// "short RANK N": that rank has N descriptors for the meeting; prints `met` or the error, and stays.
/// "crowded": its ranks are threads, whose meeting begins with more descriptors of its user under way than it
/// may have; `met` or the error of each.
/// "mixed ...", "soak ...", "cycles ...": scenarios.h.
class Worker {
 public:
  Worker(const std::string& scenario, const std::string& job, int rank, int size, int timeout_ms);
  Worker(Worker&& other) noexcept;
  /// Kills it if it still runs.
  ~Worker();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// What it printed until its end.
  std::string output();

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
};

/// One for each rank of a new job.
std::vector<Worker> start_workers(const std::string& scenario, int size, int timeout_ms = 20'000);
/// What each printed until its end.
std::vector<std::string> outputs_of(std::vector<Worker>& workers);

/// "all_reduce", "begun_sum" (an all_reduce in parts), "share_shard" or "barrier", once.
void run_collective(const comm::Group& group, const std::string& name);

/// Collective. Processes start slowly; a first meeting keeps that out of the timeout under test.
comm::Group meet_workers(const std::string& job, int rank, int size, int timeout_ms);

}  // namespace shardwise::testing
