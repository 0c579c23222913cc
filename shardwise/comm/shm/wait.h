// How a rank waits for a number in shared memory to grow: spin, yield, then sleep in short slices.
//
// Which of them for how long depends on whether the ranks have a core each. A spinning rank that shares its
// core with the one it waits for costs a whole time slice (measured: a thousand times the latency).
#pragma once
#include <c10/util/FunctionRef.h>
#include <sched.h>

#include <chrono>
#include <string_view>

#include "shardwise/comm/shm/control.h"

namespace shardwise::comm::shm {

/// What an error tells of a call that waits.
struct Attempt {
  std::string_view op;
  uint64_t sequence;  // number of the collective, or of this rank's sends or receives
  int peer;           // whose turn it is; -1 when it is no single one's
  std::chrono::milliseconds limit;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

/// How a rank's part in the group came to be over: in good order, or with its process.
enum class End { left, gone };

/// A wait for what peers do. Refers to its functions, which must outlive it.
struct Wait {
  Attempt attempt;
  Flag& flag;  // grows whenever `ready` may have come true
  c10::function_ref<bool()> ready;
  /// Whether the wait can end well though `peer` does nothing more; asked when that is so.
  c10::function_ref<bool(int peer, End end)> can_do_without;
};

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
/// Adds one, beside others who do, and wakes them.
void ring(Flag& flag);
void wake_sleepers(Flag& flag);

}  // namespace shardwise::comm::shm
