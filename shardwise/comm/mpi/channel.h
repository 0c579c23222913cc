// The synchronization of a group over MPI: announces a collective, waits for the peers' announcements and
// detects failures.
//
// The counterpart of comm/shm/channel.h, with messages instead of flags. Before any data moves, every rank
// sends every peer a 64-byte announcement of the collective. Small inputs are appended as its payload; such
// reductions need no further messages.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/comm/group_guard.h"
#include "shardwise/comm/mpi/rendezvous.h"
#include "shardwise/comm/mpi/transfers.h"

namespace shardwise::comm::mpi {

/// With the header one message of 4032 bytes, which MPI sends eagerly (without waiting for the receiver).
inline constexpr size_t kPayloadBytes = 3968;

/// One rank's announcement of a collective to one peer; sent without the unused end of the payload.
struct Announcement {
  uint64_t sequence = 0;
  int64_t for_peer = 0;  // number of elements sent to this peer, if only the two ranks know it
  Descriptor descriptor;
  alignas(64) std::byte payload[kPayloadBytes] = {};
};
static_assert(offsetof(Announcement, payload) == 64 && sizeof(Announcement) == 64 + kPayloadBytes);

/// The state of a group over MPI. One thread at a time runs collectives; `abort` and waits for messages may
/// run on any thread.
class Channel : public GroupGuard {
 public:
  Channel(const ConnectOptions& options, Membership membership);

  int size() const { return membership_.size(); }
  uint64_t sequence() const { return sequence_; }
  const Membership& membership() const { return membership_; }
  /// Returns an empty set of transfers for a collective's data.
  Transfers transfers() const { return Transfers(*membership_.process, message_bytes_); }
  Address data(int peer) const { return {membership_.data, peer}; }

  /// Returns whether an input of `bytes` is sent with the announcements, of which a rank sends one to each
  /// peer.
  bool fits_payload(size_t bytes) const {
    constexpr size_t kAllPayloads = size_t{32} << 10;
    return bytes <= kPayloadBytes && bytes * size_t(size() - 1) <= kAllPayloads;
  }
  /// What the announcements of a collective contain.
  struct Contents {
    std::span<const std::byte> payload;
    // Number of elements per peer, if each pair of ranks has its own; otherwise empty.
    std::span<const int64_t> to_peers, from_peers;
  };
  /// Begins a collective: returns when all peers have announced the same one. The timeout limits the wait for
  /// all peers together. Errors: base::CommError.
  void open(const Descriptor& descriptor, const Contents& contents = {});
  /// Returns the announced payload of a peer or of this rank.
  const std::byte* payload(int peer) const;
  /// Waits until all of a collective's messages are complete. Errors: base::CommError.
  void run(Transfers& transfers);
  /// Returns the bytes that `run` has sent to ranks of other nodes so far.
  int64_t inter_node_bytes() const { return inter_node_bytes_; }

  enum class WaitKind { announcement, data, message };
  /// What a waiting call reports in its error.
  struct WaitContext {
    std::string_view op;
    uint64_t sequence;  // number of the collective, or of this rank's sends or receives
    std::chrono::milliseconds limit;
    WaitKind kind;
  };
  /// Throws if a wait for `peer` (below 0: any rank) must end: a control message reports a failure, the peer
  /// has left the group, or the limit has passed. Called during long waits.
  void check_failures(const WaitContext& context, int peer, const Backoff& backoff);
  /// Throws base::CommError with the recorded failure if the group is broken.
  void throw_if_broken(const WaitContext& context, Backoff::Clock::duration elapsed = {});
  /// Waits until the first `parts` of the messages are complete. Waits with one `backoff` have one limit
  /// together.
  void wait(Transfers& transfers, size_t parts, const WaitContext& context, Backoff& backoff);
  void wait(Transfers& transfers, size_t parts, const WaitContext& context);
  Backoff backoff(WaitKind kind) const;
  /// Breaks the group and throws base::CommError.
  [[noreturn]] void fail(const WaitContext& context, int peer, const std::string& what,
                         Backoff::Clock::duration elapsed = {});
  /// Breaks the group because of messages that no call waits for; the next call throws.
  void record_transfer_failure(const Transfers& transfers);

  /// Breaks the group because the size sent by `peer` differs from the size expected here, and throws.
  [[noreturn]] void fail_transfer(const WaitContext& context, int peer, const std::string& sent,
                                  const std::string& expected, Backoff::Clock::duration elapsed = {});

  void abort(const std::string& reason);
  /// Ends this rank's use of the group. A peer that later waits for this rank throws.
  void leave();

 private:
  struct ControlMessage;
  struct Failure {
    int peer;
    std::string reason;
  };
  struct Announcements {
    std::vector<Announcement> mine;  // one for all peers if they are equal
    std::vector<Announcement> theirs;
  };

  WaitContext wait_context(WaitKind kind) const;
  void announce(const Descriptor& descriptor, const Contents& contents);
  void compare(int peer, const Contents& contents, Backoff::Clock::duration elapsed);
  void compare_sizes(int peer, int64_t sent, int64_t expected, Backoff::Clock::duration elapsed);
  bool has_left(int peer, const WaitContext& context) const;
  void read_control_messages();
  void record_failure(const Failure& failure);
  void send_to_all(const ControlMessage& message);

  Membership membership_;
  int64_t message_bytes_;
  std::atomic<uint64_t> sequence_ = 0;  // read by other threads
  int64_t inter_node_bytes_ = 0;
  Descriptor mine_;
  std::shared_ptr<Announcements> announcements_;
  mutable std::mutex failure_mutex_;           // guards left_ and failure_
  std::vector<std::optional<uint64_t>> left_;  // the last collective of a rank that has left
  std::optional<Failure> failure_;
};

}  // namespace shardwise::comm::mpi
