// MPI in this process: started once, used by one thread at a time, ended in good order or with the job.
//
// MPI_THREAD_SERIALIZED, not FUNNELED: what returns only once other ranks come (the start, new communicators,
// the end) runs on a thread of its own, so that its caller waits no longer than its timeout; and a group's
// caller may change threads. A lock around every call keeps the promise and costs nanoseconds. A program that
// has started MPI itself calls it without that lock: then it must be MPI_THREAD_MULTIPLE.
#pragma once
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise::comm::mpi {

class Transfers;

/// This process's place in the job, as told by whoever started it.
struct Job {
  int rank;
  int world_size;
  std::chrono::milliseconds timeout;
};

class Process {
 public:
  /// MPI of this process, which the first call starts: collective over the job.
  /// Errors: base::CommError when not all ranks came in time; c10::ValueError when MPI knows another job. A
  /// start that has failed stays so: every later call throws its error.
  static Process& of(const Job& job);
  /// Null before.
  static Process* started();

  /// All ranks of the job; not MPI_COMM_WORLD, which is the program's.
  MPI_Comm world() const { return world_; }
  int largest_tag() const { return largest_tag_; }
  /// Held around every call of MPI. Nobody waits for a peer with it, but for `run`.
  /// Errors: base::CommError when a call that `run` gave up keeps it, or MPI has ended.
  std::unique_lock<std::timed_mutex> enter();
  /// The same for those who can do without: empty where `enter` throws.
  std::unique_lock<std::timed_mutex> try_enter();

  /// To be held while a group is made. Errors: c10::ValueError while another thread does.
  std::unique_lock<std::mutex> begin_group(const std::string& name);

  /// Runs a call that may wait for peers. False when it has not returned in time: then it keeps what it
  /// refers to and the lock, and MPI is of no more use to this process.
  bool run(std::function<void()> call, std::chrono::milliseconds timeout);
  /// Looks after messages that nobody waits for, until they are done. `failed` is told, by this thread or
  /// MPI's own, when they cannot be.
  using Failed = std::function<void(const Transfers&)>;
  void drive(std::shared_ptr<Transfers> transfers, Failed failed);
  /// Whether this is a child that fork() made of the process: no rank, and MPI is not its own.
  bool is_fork() const { return getpid() != pid_; }
  /// From now on MPI cannot be ended in good order.
  void give_up() { is_given_up_ = true; }
  /// Waits for messages that `drive` looks after, up to the timeout, and for the other ranks as long as they
  /// live. Nothing where MPI was given up, or in a fork.
  void finish();

 private:
  explicit Process(std::chrono::milliseconds timeout);
  void begin(const Job& job);
  void start();
  void check(const Job& job) const;
  std::future<void> hand_over(std::function<void()> call);
  void serve();
  struct Driven {
    std::shared_ptr<Transfers> transfers;
    Failed failed;
  };
  std::vector<Driven> drive_all();
  bool has_driven();
  void end_with(int exit_code);

  std::mutex making_;
  std::timed_mutex lock_;
  std::mutex mutex_;  // of the three below; taken before lock_
  std::condition_variable work_;
  std::deque<std::packaged_task<void()>> calls_;
  std::vector<Driven> driven_;

  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, largest_tag_ = 32767;
  bool is_ours_ = true;  // not started by the program itself
  std::exception_ptr start_failure_;
  std::atomic<bool> is_stuck_ = false, is_given_up_ = false, is_finished_ = false;
  std::atomic<bool> has_ended_ = false;  // no call of MPI is begun any more
  std::chrono::milliseconds timeout_;
  pid_t pid_ = getpid();
};

/// MPI's words for a code.
std::string error_text(int code);

}  // namespace shardwise::comm::mpi
