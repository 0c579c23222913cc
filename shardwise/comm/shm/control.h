// The control block at the start of every rank's region: the cache lines through which the ranks of a group
// synchronize.
//
// Each rank writes its own lines and reads its peers'. Peers write only `sleepers` and the doorbell, and
// two_shot writes its sums into payloads (all_reduce.cpp). All fields but `identity` start as zero, because
// the kernel zeroes the pages. Lines that different ranks poll are 128 bytes apart (the CPU prefetches
// adjacent lines).
#pragma once
#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "shardwise/comm/descriptor.h"
#include "shardwise/comm/shm/limits.h"

namespace shardwise::comm::shm {

/// A number that only grows, and the count of ranks that sleep until it does. The low half is the futex word.
struct Flag {
  std::atomic<uint64_t> sequence;
  std::atomic<uint32_t> sleepers;
};

/// The largest input that is stored in the slot itself; a slot is a page.
inline constexpr size_t kInlineBytes = 4032;

/// A rank posts collective n in slot n mod 2: descriptor and payload first, then the sequence (release).
/// Two slots are enough. A rank rewrites slot n mod 2 when it posts n+2. Before that it has seen every peer
/// post n+1, and a peer posts n+1 only after it has seen all of n and read what it needs of n's payloads.
struct alignas(128) Slot {
  Flag flag;
  Descriptor descriptor;
  alignas(64) std::byte payload[kInlineBytes];
};
static_assert(sizeof(Slot) == 4096);

/// The reason why the group is aborted; written once.
struct alignas(128) Abort {
  enum class State : uint32_t { none, writing, set };
  std::atomic<State> state;
  int32_t peer;  // the rank that caused it
  char reason[1000];

  /// Returns false if a reason is already set or being written.
  bool set_once(int faulty_rank, const std::string& why) {
    State before = State::none;
    if (!state.compare_exchange_strong(before, State::writing)) return false;
    peer = faulty_rank;
    std::strncpy(reason, why.c_str(), sizeof(reason) - 1);  // the initial zeros terminate it
    state.store(State::set);
    return true;
  }
  /// Waits until a reason that another thread of this process is writing is set.
  void wait_until_set() const {
    while (state.load() == State::writing) sched_yield();
  }
};

inline constexpr uint64_t kEnvelopes = 16;
inline constexpr size_t kInlineMessage = 480;

/// One message. A message longer than `payload` is stored in a block of the sender's heap.
struct alignas(64) Envelope {
  int64_t tag;
  int64_t numel;
  uint64_t offset;  // of the dense elements in the sender's region
  int8_t dtype;
  alignas(32) std::byte payload[kInlineMessage];
};
static_assert(sizeof(Envelope) == 512);

/// One rank's ring of messages for one peer until that peer receives them (messages.h). Message n is in
/// envelope n mod 16, which is reused when the peer has received n. Sender and receiver access envelope and
/// elements first, then store their count (release).
struct Mailbox {
  alignas(128) std::atomic<uint64_t> posted;    // messages sent to that peer so far
  alignas(128) std::atomic<uint64_t> received;  // messages received from that peer so far
  alignas(128) Envelope envelopes[kEnvelopes];
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): padding keeps lines of different pollers apart.
struct Control {
  Slot slots[2];
  alignas(128) Flag departed;  // the last collective whose inputs this rank has finished reading
  Abort abort;
  uint64_t identity;  // random, set before any peer sees it; rank 0's identifies the group
  alignas(128) std::atomic<uint32_t> left;  // 1 once the rank has left the group cleanly
  alignas(128) Flag doorbell;               // rung for messages, signals, aborts and ranks that leave
  Mailbox mailboxes[kMaxRanks];             // only those of existing ranks are backed by memory

  static size_t bytes(int ranks) { return offsetof(Control, mailboxes) + size_t(ranks) * sizeof(Mailbox); }
};

/// The heap starts on a huge page; the gap costs address space only.
inline constexpr size_t kHeapOffset = size_t{2} << 20;
static_assert(sizeof(Control) <= kHeapOffset);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace shardwise::comm::shm
