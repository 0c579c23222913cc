// What a rank does between two looks at MPI: spin, yield, then sleep in short naps.
//
// Nobody can wake it, and messages only move while it looks (MPI has no thread of its own here): naps are
// short while data is on its way, and grow while a peer has not come.
#pragma once
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace shardwise::comm::mpi {

/// While a peer has not come.
inline constexpr std::chrono::microseconds kLongestNap{1000};

class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  struct Policy {
    std::chrono::nanoseconds spin{0}, yield{0};
    /// A rank that spins on the core of the one it waits for costs a time slice.
    static Policy choose(int ranks, int processors) {
      using std::chrono::microseconds;
      if (ranks <= processors) return {microseconds(50), microseconds(2000)};
      return {microseconds(0), microseconds(500)};
    }
  };

  Backoff(const Policy& policy, std::chrono::microseconds longest_nap)
      : policy_(policy), longest_nap_(longest_nap) {}

  Clock::duration elapsed() const { return Clock::now() - start_; }
  bool is_asleep() const { return is_asleep_; }

  /// Something has come, and more is mostly near: spins again. `elapsed` goes on.
  void wake() {
    if (!is_asleep_) return;
    is_asleep_ = false;
    nap_ = kShortestNap;
    awake_since_ = Clock::now();
  }

  void pause() {
    const auto waited = Clock::now() - awake_since_;
    if (waited < policy_.spin) {
      __builtin_ia32_pause();
    } else if (waited < policy_.spin + policy_.yield) {
      sched_yield();
    } else {
      is_asleep_ = true;
      std::this_thread::sleep_for(nap_);
      nap_ = std::min(2 * nap_, longest_nap_);
    }
  }

 private:
  Policy policy_;
  static constexpr std::chrono::microseconds kShortestNap{20};
  std::chrono::microseconds nap_ = kShortestNap, longest_nap_;
  bool is_asleep_ = false;
  Clock::time_point start_ = Clock::now(), awake_since_ = start_;
};

}  // namespace shardwise::comm::mpi
