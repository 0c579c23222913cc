// MPI in this process: initialized once, used by one thread at a time, finalized cleanly or aborted with the
// job.
//
// Requires MPI_THREAD_SERIALIZED rather than FUNNELED: calls that block until other ranks call them
// (initialization, new communicators, finalization) run on a separate thread, so that their caller waits no
// longer than its timeout; and a group may be used from several threads in turn. A lock around every MPI call
// ensures serialization and costs nanoseconds. A program that initialized MPI itself calls it without that
// lock, so it needs MPI_THREAD_MULTIPLE.
#pragma once
#include <mpi.h>

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

#include "shardwise/base/fork.h"

namespace shardwise::comm::mpi {

class Transfers;

/// This process's rank in the job, from the launcher's environment variables.
struct ProcessOptions {
  int rank;
  int world_size;
  std::chrono::milliseconds timeout;
};

/// The MPI library of this process.
class Process {
 public:
  /// Returns the process's instance. The first call initializes MPI and is collective over the job.
  /// Errors: base::CommError if not all ranks started MPI in time; c10::ValueError if MPI reports another
  /// rank or world size. After a failed initialization every later call throws the same error.
  static Process& get(const ProcessOptions& job);
  /// Returns the instance, or null before the first `get`.
  static Process* started();

  /// Returns a communicator of all ranks of the job: a duplicate of MPI_COMM_WORLD, which belongs to the
  /// program.
  MPI_Comm world() const { return world_; }
  int largest_tag() const { return largest_tag_; }
  /// Locks MPI; held around every MPI call. Only `run` waits for peers while holding it.
  /// Errors: base::CommError if a timed-out call of `run` still holds the lock, or MPI has been shut down;
  /// c10::ValueError in a fork.
  std::unique_lock<std::timed_mutex> lock();
  /// Locks MPI like `lock`, but returns an empty lock where `lock` throws a CommError. Not in a fork.
  std::unique_lock<std::timed_mutex> try_lock();

  /// Returns a lock to hold while a group is created. Errors: c10::ValueError if another thread holds it.
  std::unique_lock<std::mutex> lock_group_creation(const std::string& name);

  /// Runs a call that may block on peers. Returns false if it has not returned in time: it then keeps the
  /// lock and everything that it refers to, and this process can no longer use MPI.
  bool run(std::function<void()> call, std::chrono::milliseconds timeout);
  /// Progresses transfers that no call waits for until they are complete. If they fail, `on_failure` is
  /// called on this thread or on MPI's.
  using OnFailure = std::function<void(const Transfers&)>;
  void complete_in_background(std::shared_ptr<Transfers> transfers, OnFailure on_failure);
  /// Returns whether this process is a fork of the rank. A fork is not a rank and must not use MPI.
  bool is_fork() const { return mark_.is_fork(); }
  /// Records that MPI can no longer be finalized cleanly.
  void mark_unusable() { is_unusable_ = true; }
  /// Finalizes MPI: waits for background transfers up to the timeout, and for the other ranks up to two
  /// timeouts in all. Does nothing in a fork or after `mark_unusable`. Errors: base::CommError if a rank has
  /// not called it by then; the exit of this process then ends the job.
  void shutdown();

 private:
  explicit Process(std::chrono::milliseconds timeout);
  void begin(const ProcessOptions& job);
  void start();
  void check(const ProcessOptions& job) const;
  std::future<void> submit(std::function<void()> call);
  void run_thread();
  struct BackgroundTransfers {
    std::shared_ptr<Transfers> transfers;
    OnFailure on_failure;
  };
  /// Progresses the background transfers and returns those that failed.
  std::vector<BackgroundTransfers> advance_background();
  bool has_background();
  void at_exit(int exit_code);
  bool shutdown_or_print();
  [[noreturn]] void end_job(int exit_code);

  std::mutex group_creation_;
  std::timed_mutex mpi_mutex_;
  std::mutex mutex_;  // guards the three members below; locked before mpi_mutex_
  std::condition_variable work_;
  std::deque<std::packaged_task<void()>> calls_;
  std::vector<BackgroundTransfers> background_;

  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, largest_tag_ = 32767;
  bool initialized_here_ = true;  // rather than by the program
  std::exception_ptr start_failure_;
  std::atomic<bool> is_stuck_ = false, is_unusable_ = false, shutdown_started_ = false;
  std::atomic<bool> is_shut_down_ = false;  // no further MPI calls
  std::chrono::milliseconds timeout_;
  base::ProcessMark mark_;
};

/// Returns MPI's text for an error code.
std::string error_text(int code);

}  // namespace shardwise::comm::mpi
