// The synchronization of a group over MPI: announce a collective, wait for the peers' announcements, find out
// who failed.
//
// As comm/shm/channel.h, with messages for flags. Every rank tells every other what it is about to do before
// any data moves: 64 bytes each, and behind them the terms of small sums, which then need no more messages.
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

#include "shardwise/comm/descriptor.h"
#include "shardwise/comm/mpi/rendezvous.h"
#include "shardwise/comm/mpi/transfers.h"

namespace shardwise::comm::mpi {

/// Together with its header one message of 4032 bytes, which MPI sends without asking the receiver first.
inline constexpr size_t kPayloadBytes = 3968;

/// One rank's side of one collective, as told to one peer; sent up to the end of the payload's used part.
struct Announcement {
  uint64_t sequence = 0;
  int64_t for_peer = 0;  // elements that this peer will get, where ranks know their own pieces alone
  Descriptor descriptor;
  alignas(64) std::byte payload[kPayloadBytes] = {};
};
static_assert(offsetof(Announcement, payload) == 64 && sizeof(Announcement) == 64 + kPayloadBytes);

/// Collectives come from one thread at a time; `abort`, and those who wait for messages, from any.
class Channel {
 public:
  Channel(const Options& options, Meeting meeting);

  int rank() const { return meeting_.rank; }
  int size() const { return meeting_.size(); }
  uint64_t sequence() const { return sequence_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  void limit_collectives(std::chrono::milliseconds limit) { collectives_limit_ = limit; }
  const Meeting& meeting() const { return meeting_; }
  /// For a collective's data; none under way yet.
  Transfers transfers() const { return Transfers(*meeting_.process, message_bytes_); }
  Address data(int peer) const { return {meeting_.data, peer}; }

  /// Whether a message goes with the announcements: a rank sends it to all others.
  bool fits_payload(size_t bytes) const {
    constexpr size_t kAllPayloads = size_t{32} << 10;
    return bytes <= kPayloadBytes && bytes * size_t(size() - 1) <= kAllPayloads;
  }
  struct Sides {
    std::span<const std::byte> payload;
    // Elements, where each pair of ranks has a piece of its own size; empty: none.
    std::span<const int64_t> to_peers, from_peers;
  };
  /// Begins a collective: returns when all peers have announced the same, within the timeout for all of them
  /// together. Errors: base::CommError.
  void open(const Descriptor& descriptor, const Sides& sides = {});
  /// What a peer has announced, or this rank.
  const std::byte* payload(int peer) const;
  /// Until all of a collective's messages are done. Errors: base::CommError.
  void run(Transfers& transfers);
  /// Of what `run` has sent, that to ranks of other hosts.
  int64_t crossed_bytes() const { return crossed_bytes_; }

  enum class Awaited { announcement, data, message };
  /// What an error tells of a call that waits.
  struct Attempt {
    std::string op;
    uint64_t sequence;  // number of the collective, or of this rank's sends or receives
    std::chrono::milliseconds limit;
    Awaited awaited;
  };
  /// What a call must look at that has waited for `peer` (below 0: any rank) so long: notices, whether the
  /// rank has left, the limit.
  void check_failures(const Attempt& attempt, int peer, const Backoff& backoff);
  /// Errors: c10::ValueError after `leave`.
  void check_member(std::string_view op) const;
  /// The reason that the group is broken for, if it is.
  void throw_if_broken(const Attempt& attempt, Backoff::Clock::duration elapsed = {});
  /// Until the first `parts` of the messages are done; several waits by one backoff have one limit together.
  void wait(Transfers& transfers, size_t parts, const Attempt& attempt, Backoff& backoff);
  void wait(Transfers& transfers, size_t parts, const Attempt& attempt);
  Backoff backoff(Awaited awaited) const;
  /// Breaks the group and throws.
  [[noreturn]] void fail(const Attempt& attempt, int peer, const std::string& what,
                         Backoff::Clock::duration elapsed = {});
  /// The same for messages that nobody waits for, without throwing: the next call does.
  void fail_unwaited(const Transfers& transfers);

  [[noreturn]] void fail_transfer(const Attempt& attempt, int peer, const std::string& sent,
                                  const std::string& taken, Backoff::Clock::duration elapsed = {});

  void abort(const std::string& reason);
  /// Ends this rank's use of the group: peers are told when they wait for more.
  void leave();

 private:
  struct Notice;
  struct Failure {
    int peer;
    std::string reason;
  };
  struct Announcements {
    std::vector<Announcement> mine;  // one for all where they are alike
    std::vector<Announcement> theirs;
  };

  Attempt attempt(Awaited awaited) const;
  void announce(const Descriptor& descriptor, const Sides& sides);
  void compare(int peer, const Sides& sides, Backoff::Clock::duration elapsed);
  void compare_sizes(int peer, int64_t sent, int64_t taken, Backoff::Clock::duration elapsed);
  bool has_left(int peer, const Attempt& attempt) const;
  void read_notices();
  [[noreturn]] void throw_failure(const Attempt& attempt, const Failure& failure,
                                  Backoff::Clock::duration elapsed) const;
  void poison(const Failure& failure);
  void send_to_all(const Notice& notice);

  Meeting meeting_;
  std::chrono::milliseconds collectives_limit_{0};
  std::atomic<std::chrono::milliseconds> timeout_;  // read by threads that wait for messages
  int64_t message_bytes_;
  uint64_t sequence_ = 0;
  int64_t crossed_bytes_ = 0;
  bool has_left_ = false;
  Descriptor mine_;
  std::shared_ptr<Announcements> announcements_;
  mutable std::mutex failure_mutex_;           // of the two below
  std::vector<std::optional<uint64_t>> left_;  // the last collective of a rank that has left
  std::optional<Failure> failure_;
};

}  // namespace shardwise::comm::mpi
