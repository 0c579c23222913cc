// The state of a rank's endpoint in a group that does not depend on the transport: its rank, the limits of
// its waits, the call in flight, whether it has left, and the texts of its errors.
#pragma once
#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "shardwise/base/clock.h"
#include "shardwise/base/fork.h"
#include "shardwise/comm/descriptor.h"

namespace shardwise::comm {

/// The base of the channels of comm/shm and comm/mpi. Groups over other backends have a guard of their own.
class GroupGuard {
 public:
  int rank() const { return rank_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = base::capped(timeout); }
  /// Replaces the timeout in collectives, but not in messages; 0 restores it.
  void limit_collectives(std::chrono::milliseconds limit) { collectives_limit_ = base::capped(limit); }
  /// Checks that this rank has not left the group. Errors: c10::ValueError.
  void check_member(std::string_view op) const;
  /// Returns whether this process is a fork of the rank. A fork is not a rank and must not use the group.
  bool is_fork() const { return process_.is_fork(); }

  /// The scope of one call. A group runs one call at a time, of the process that connected it: another would
  /// write into the same slot of shared memory. Calls within a call, on the same thread, belong to it.
  class Call {
   public:
    /// Others may read `op` after the call: it must live as long as the program. Errors: c10::ValueError that
    /// names both calls, or in a fork; nothing has been sent then.
    Call(GroupGuard* group, const char* op);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    static thread_local const Call* innermost_;
    static bool is_within_call_of(const GroupGuard* group);

    GroupGuard* group_;  // null if the call belongs to an enclosing one
    const Call* enclosing_ = nullptr;
  };

 protected:
  /// `job_ranks`: the ranks of the job that form the group, by which errors name them; empty: they are the
  /// job's.
  GroupGuard(int rank, std::chrono::milliseconds timeout, std::vector<int> job_ranks = {})
      : rank_(rank), job_ranks_(std::move(job_ranks)), timeout_(base::capped(timeout)) {}
  ~GroupGuard() = default;

  /// Returns the limit of a collective's waits.
  std::chrono::milliseconds collectives_limit() const {
    return collectives_limit_.count() > 0 ? collectives_limit_ : timeout();
  }
  /// Records that this rank leaves the group. Returns false if it has left already.
  bool mark_left() { return !has_left_.exchange(true); }

  /// Returns the job's rank of `peer`, a rank of the group; −1 for −1.
  int job_rank(int peer) const {
    return job_ranks_.empty() || peer < 0 ? peer : job_ranks_.at(static_cast<size_t>(peer));
  }

  /// A wait that failed, for the error.
  struct FailedWait {
    std::string_view op;
    uint64_t sequence;
    int peer;  // the cause; -1 if it is not a single rank
    std::chrono::duration<double> elapsed, limit;
  };
  [[noreturn]] void throw_failure(const FailedWait& wait, const std::string& what) const;
  /// Returns the text of a rank that has exited or left, of an abort, of two collectives that differ, and of
  /// two sizes that differ.
  std::string exit_text(int peer, int pid, bool left) const;
  std::string abort_text(const std::string& reason) const;
  std::string mismatch_text(const Descriptor& ours, int peer, const Descriptor& theirs) const;
  std::string transfer_text(int peer, const std::string& sent, const std::string& expected) const;

 private:
  int rank_;
  std::vector<int> job_ranks_;
  base::ProcessMark process_;
  std::atomic<const char*> in_flight_{nullptr};     // the name of the call that runs
  std::atomic<std::chrono::milliseconds> timeout_;  // read by threads that wait for messages
  std::chrono::milliseconds collectives_limit_{0};  // of the call in flight
  std::atomic<bool> has_left_ = false;              // `leave` may run while another thread's call waits
};

}  // namespace shardwise::comm
