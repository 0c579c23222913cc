// Where a rank's messages for one peer lie until that peer has taken them. Layout only: posting is
// outbox.h's, taking inbox.h's.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shardwise::comm::shm {

inline constexpr uint64_t kEnvelopes = 16;
inline constexpr size_t kInlineMessage = 480;

/// One message. Longer ones than `payload` holds lie in a block of the sender's heap.
struct alignas(64) Envelope {
  int64_t tag;
  int64_t numel;
  uint64_t offset;  // of the elements, dense, in the sender's region
  int8_t dtype;
  alignas(32) std::byte payload[kInlineMessage];
};
static_assert(sizeof(Envelope) == 512);

/// What a rank has for one peer. Message n lies in envelope n mod 16, which is written again when the peer
/// has taken n: envelope and elements first, then the count (release), either way.
struct Mailbox {
  alignas(128) std::atomic<uint64_t> posted;  // messages to that peer so far
  alignas(128) std::atomic<uint64_t> taken;   // messages from that peer so far
  alignas(128) Envelope envelopes[kEnvelopes];
};

}  // namespace shardwise::comm::shm
