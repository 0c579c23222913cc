// Waiting for a number in shared memory to grow: spin, yield, then sleep in short slices.
//
// The time in each phase depends on whether each rank has a core of its own. A rank that spins on the core of
// the rank it waits for costs a whole time slice (measured: a thousand times the latency).
#pragma once
#include <c10/util/FunctionRef.h>
#include <sched.h>

#include <chrono>
#include <string_view>

#include "shardwise/comm/shm/control.h"

namespace shardwise::comm::shm {

/// The call that waits, for its error message.
struct WaitContext {
  std::string_view op;
  uint64_t sequence;  // number of the collective, or of this rank's sends or receives
  int peer;           // the rank waited for; -1 if it is not a single rank
  std::chrono::milliseconds limit;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

/// Why a peer is no longer in the group: it left cleanly, or its process exited.
enum class PeerState { left, exited };

/// A wait for an action of the peers. Refers to its functions, which must outlive it.
struct Wait {
  WaitContext context;
  Flag& flag;  // grows whenever `ready` may have become true
  c10::function_ref<bool()> ready;
  /// Called when `peer` has left or exited. Returns whether the wait can still succeed.
  c10::function_ref<bool(int peer, PeerState state)> tolerates_loss_of;
};

struct WaitPolicy {
  std::chrono::nanoseconds spin;
  std::chrono::nanoseconds yield;
  static WaitPolicy choose(int ranks, int cores);
};

/// Spins, then yields. Returns whether `ready` became true within the policy's time.
template <typename Ready>
bool spin_then_yield(const WaitPolicy& policy, const Ready& ready) {
  constexpr int kPausesPerClockRead = 32;
  const auto start = std::chrono::steady_clock::now();
  auto elapsed = std::chrono::nanoseconds(0);
  while (elapsed < policy.spin) {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
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

/// Sleeps until `flag` differs from `seen`, a peer wakes the sleepers, or `limit` passes.
void sleep_on(Flag& flag, uint64_t seen, std::chrono::milliseconds limit);
/// Stores `sequence` and wakes the ranks that sleep on the flag.
void advance(Flag& flag, uint64_t sequence);
/// Adds one (several ranks may do so concurrently) and wakes the ranks that sleep on the flag.
void ring(Flag& flag);
void wake_sleepers(Flag& flag);

}  // namespace shardwise::comm::shm
