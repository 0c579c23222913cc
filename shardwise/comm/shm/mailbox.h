// The mailbox that holds a rank's messages for one peer until that peer receives them. Layout only: outbox.h
// sends, inbox.h receives.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shardwise::comm::shm {

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

/// One rank's ring of messages for one peer. Message n is in envelope n mod 16, which is reused when the peer
/// has received n. Sender and receiver access envelope and elements first, then store their count (release).
struct Mailbox {
  alignas(128) std::atomic<uint64_t> posted;    // messages sent to that peer so far
  alignas(128) std::atomic<uint64_t> received;  // messages received from that peer so far
  alignas(128) Envelope envelopes[kEnvelopes];
};

}  // namespace shardwise::comm::shm
