// Polling back-off for MPI progress: spin, then yield, then sleep for increasing intervals.
//
// A sleeping rank cannot be woken, and messages progress only while it polls (MPI has no progress thread
// here): sleep intervals are short during a data transfer and grow while a peer has not arrived.
#pragma once
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace shardwise::comm::mpi {

/// The longest sleep while a peer has not arrived.
inline constexpr std::chrono::microseconds kMaxSleep{1000};

class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  struct Policy {
    std::chrono::nanoseconds spin{0}, yield{0};
    /// Returns a policy without spinning if the ranks outnumber the processors: a rank that spins on the core
    /// of the rank it waits for costs a time slice.
    static Policy choose(int ranks, int processors) {
      using std::chrono::microseconds;
      if (ranks <= processors) return {microseconds(50), microseconds(2000)};
      return {microseconds(0), microseconds(500)};
    }
  };

  Backoff(const Policy& policy, std::chrono::microseconds max_sleep)
      : policy_(policy), max_sleep_(max_sleep) {}

  Clock::duration elapsed() const { return Clock::now() - start_; }
  bool is_sleeping() const { return is_sleeping_; }

  /// Returns to spinning after a message has arrived, since the next one usually follows soon. Does not reset
  /// `elapsed`.
  void reset() {
    if (!is_sleeping_) return;
    is_sleeping_ = false;
    sleep_ = kMinSleep;
    awake_since_ = Clock::now();
  }

  void pause() {
    const auto waited = Clock::now() - awake_since_;
    if (waited < policy_.spin) {
      __builtin_ia32_pause();
    } else if (waited < policy_.spin + policy_.yield) {
      sched_yield();
    } else {
      is_sleeping_ = true;
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(2 * sleep_, max_sleep_);
    }
  }

 private:
  Policy policy_;
  static constexpr std::chrono::microseconds kMinSleep{20};
  std::chrono::microseconds sleep_ = kMinSleep, max_sleep_;
  bool is_sleeping_ = false;
  Clock::time_point start_ = Clock::now(), awake_since_ = start_;
};

}  // namespace shardwise::comm::mpi
