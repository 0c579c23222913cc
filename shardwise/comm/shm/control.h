// What lies at the start of every rank's region: the lines by which the ranks of a group see each other.
//
// Each rank writes its own lines and reads its peers'; peers write `sleepers` and the doorbell, and two_shot
// its sums into payloads (collectives.cpp). All but `identity` is zero at birth, as the kernel hands out the
// pages. Lines that different ranks poll are 128 bytes apart (adjacent lines are prefetched).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "shardwise/comm/descriptor.h"
#include "shardwise/comm/shm/mailbox.h"

namespace shardwise::comm::shm {

/// A number that only grows, and the count of those who sleep until it does. Its low half is the futex word.
struct Flag {
  std::atomic<uint64_t> sequence;
  std::atomic<uint32_t> sleepers;
};

/// The most that travels with an announcement; a slot is a page.
inline constexpr size_t kInlineBytes = 4032;

/// Collective n is announced in slot n mod 2: descriptor and payload first, then the sequence (release).
/// Two slots are enough. A rank writes slot n mod 2 again when it posts n+2. Before, it has seen every peer
/// post n+1, and a peer posts n+1 only when it has seen all of n and read what it needs of n's payloads.
struct alignas(128) Slot {
  Flag flag;
  Descriptor descriptor;
  alignas(64) std::byte payload[kInlineBytes];
};
static_assert(sizeof(Slot) == 4096);

/// Why the group is broken; written once.
struct alignas(128) Abort {
  enum State : uint32_t { none, writing, set };
  std::atomic<uint32_t> state;
  int32_t peer;  // the rank to blame
  char reason[1000];

  /// False where a reason stands already, or is being written.
  bool set_once(int rank_to_blame, const std::string& why) {
    uint32_t before = none;
    if (!state.compare_exchange_strong(before, writing)) return false;
    peer = rank_to_blame;
    std::strncpy(reason, why.c_str(), sizeof(reason) - 1);  // zeros at birth end it
    state.store(set);
    return true;
  }
};

inline constexpr int kMostRanks = 240;

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): what different ranks poll is apart on purpose.
struct Control {
  Slot slots[2];
  alignas(128) Flag closed;  // the last collective that this rank reads nothing of any more
  Abort abort;
  uint64_t identity;                        // random, set before any peer sees it; rank 0's is its group's
  alignas(128) std::atomic<uint32_t> left;  // 1 once the rank has ended its use of the group in good order
  alignas(128) Flag doorbell;               // rung when a message comes, is taken, or never will be
  Mailbox mailboxes[kMostRanks];            // as many are backed by memory as there are ranks

  static size_t bytes(int ranks) { return offsetof(Control, mailboxes) + size_t(ranks) * sizeof(Mailbox); }
};

/// The heap begins on a huge page; the gap costs address space only.
inline constexpr size_t kHeapOffset = size_t{2} << 20;
static_assert(sizeof(Control) <= kHeapOffset);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace shardwise::comm::shm
