// How a rank waits for a number in shared memory to grow: spin, yield, then sleep in short slices.
//
// Which of them for how long depends on whether the ranks have a core each. A spinning rank that shares its
// core with the one it waits for costs a whole time slice (measured: a thousand times the latency).
#pragma once
#include <sched.h>

#include <chrono>

#include "shardwise/comm/shm/control.h"

namespace shardwise::comm::shm {

struct WaitPolicy {
  std::chrono::nanoseconds spin;
  std::chrono::nanoseconds yield;
  static WaitPolicy choose(int ranks, int cores);
};

/// Spins, then yields. Returns whether `ready` came true in the policy's time.
template <typename Ready>
bool wait_awake(const WaitPolicy& policy, const Ready& ready) {
  constexpr int kPausesPerLook = 32;  // at the clock
  const auto start = std::chrono::steady_clock::now();
  auto elapsed = std::chrono::nanoseconds(0);
  while (elapsed < policy.spin) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      __builtin_ia32_pause();
    }
    elapsed = std::chrono::steady_clock::now() - start;
  }
  while (elapsed < policy.spin + policy.yield) {
    if (ready()) return true;
    sched_yield();
    elapsed = std::chrono::steady_clock::now() - start;
  }
  return ready();
}

/// Sleeps until `flag` leaves `seen`, somebody wakes the sleepers, or the time is over.
void sleep_on(Flag& flag, uint64_t seen, std::chrono::milliseconds limit);
/// Stores `sequence` and wakes those who sleep on the flag.
void advance(Flag& flag, uint64_t sequence);
void wake_sleepers(Flag& flag);

}  // namespace shardwise::comm::shm
