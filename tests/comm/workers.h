// Ranks as processes, for tests that kill or stop them: each worker runs this test program again, with one of
// the scenarios below.
//
// A fork without exec would copy the locks of this program's threads in an arbitrary state.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "shardwise/comm/group.h"

namespace shardwise::testing {

/// The time for which a worker may print nothing while a test waits, in seconds of a fast machine: longer
/// than any timeout of a group.
inline constexpr double kSilence = 120;

/// A rank in a process of its own. The scenarios:
/// "all_reduce", "all_reduce_async", "share_shard": repeats the collective until an error, and prints it.
/// "share": binds to its share of the cores and prints `took 2 threads on 0 1`, its processors.
/// "part": ranks 0 and 1 connect a part of the job; one barrier of the job, then nothing.
/// "leave": one barrier, then a clean shutdown. "exit": one barrier, then _exit. "idle": one barrier, then
/// nothing.
/// "short RANK N": that rank has N descriptors for the rendezvous; prints `connected` or the error, and
/// waits. "crowded": its ranks are threads, whose rendezvous starts with more descriptors in flight than its
/// user may have; prints `connected` or the error of each rank. "no_memory": the last rank has too little for
/// an all_reduce; the others print their error. "small_files": may write only files of 1 MB; prints the error
/// of a rendezvous. "mixed ...", "rounds ...", "soak ...", "cycles ...", "fork": scenarios.h.
class Worker {
 public:
  Worker(const std::string& scenario, const std::string& job, int rank, int size, int timeout_ms);
  Worker(Worker&& other) noexcept;
  /// Kills it if it still runs.
  ~Worker();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits until it has printed `text`; fails the test if it ends before, or is silent for kSilence.
  void wait_for(const std::string& text);
  /// Returns what it has printed so far.
  const std::string& printed();
  /// Waits for its end and returns all that it printed. Fails the test and kills it if it is silent for
  /// `limit_s`.
  std::string output(double limit_s = kSilence);
  /// Waits for its end and returns waitpid's status. Its output must have been read.
  int wait();

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string printed_;

  /// Reads what is in the pipe, after waiting for something to be there. Returns false at its end; after
  /// `limit_s` fails the test, kills the worker and returns false.
  bool read_more(double limit_s);
};

/// Starts one worker for each rank of a new job.
std::vector<Worker> start_workers(const std::string& scenario, int size, int timeout_ms = 20'000);
/// Waits for the end of all workers and returns what each printed; `limit_s` as in Worker::output.
std::vector<std::string> outputs_of(std::vector<Worker>& workers, double limit_s = kSilence);

/// Runs "all_reduce", "all_reduce_async", "share_shard" or "barrier" once.
void run_collective(const comm::Group& group, const std::string& name);

/// Connects to the workers; collective. A first rendezvous keeps the slow start of the processes out of the
/// timeout under test.
comm::Group connect_to_workers(const std::string& job, int rank, int size, int timeout_ms);
/// Connects `ranks` (ascending, this one among them) of `job`'s group as a part of it.
comm::Group connect_part(const comm::Group& group, const std::string& job, const std::vector<int>& ranks);

}  // namespace shardwise::testing
