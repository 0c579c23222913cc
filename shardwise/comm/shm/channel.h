// The synchronization of a group: announce a collective, wait for the peers' announcements, find out who
// failed.
//
// Knows nothing of tensors. One collective is a post, an opening (every peer was seen to post it, with a
// descriptor that matches) and, where a peer's reading or writing must have ended, a closing. Messages
// between two ranks (inbox.h, outbox.h) wait and fail as collectives do.
#pragma once
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/shm/heap.h"
#include "shardwise/comm/shm/rendezvous.h"
#include "shardwise/comm/shm/wait.h"

namespace shardwise::comm::shm {

/// The peers' descriptors of one collective, as far as they were seen.
struct Opening {
  explicit Opening(int ranks) : descriptors(size_t(ranks)), seen(size_t(ranks)) {}
  uint64_t sequence = 0;
  std::vector<Descriptor> descriptors;
  std::vector<uint8_t> seen;
};

/// Collectives, messages and `leave` come from one thread at a time; `abort` from any.
class Channel {
 public:
  Channel(Meeting meeting, int rank, std::chrono::milliseconds timeout);
  ~Channel() { leave(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int rank() const { return rank_; }
  int size() const { return int(controls_.size()); }
  uint64_t sequence() const { return progress_->started.load(std::memory_order_relaxed); }
  const std::shared_ptr<Heap>& heap() const { return heap_; }

  /// Where a rank's region lies in this rank's address space.
  std::byte* base(int rank) const { return bases_[size_t(rank)]; }
  Control& control(int rank) const { return *controls_[size_t(rank)]; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  void limit_collectives(std::chrono::milliseconds limit) { collectives_limit_ = limit; }

  /// The payload of this rank's next slot, to be written before `post`. Errors: base::CommError as of `post`.
  std::byte* next_payload();

  /// Announces this rank's next collective, which it ends by `close`. Completes the opening before it where
  /// that was left open. Errors: base::CommError, for all ranks, where the one before was never closed: an
  /// error of this rank's own came in between, and its peers may be waiting.
  Opening& post(const Descriptor& descriptor);
  /// The same for a collective whose peers are waited for singly, and that is referred to later.
  std::shared_ptr<Opening> post_lazily(const Descriptor& descriptor);
  /// Waits until `peer` has posted and compares. Errors: base::CommError.
  const Descriptor& await(Opening& opening, int peer);
  void await_all(Opening& opening);
  /// What `peer` has written into its slot for this collective; after `await`.
  const std::byte* payload(const Opening& opening, int peer) const;

  /// This rank reads nothing of the current collective any more.
  void close();
  /// Waits until all peers have closed the current collective.
  void await_closed();

  /// Errors: c10::ValueError after `leave`; base::CommError when the group is broken, or this rank's last
  /// collective was never closed.
  void check_usable(const Attempt& attempt);
  /// What a long wait does now and then besides, so that others need not wait for this rank meanwhile.
  void while_waiting(std::function<void()> act) { while_waiting_ = std::move(act); }
  /// Waits for what is not ready yet. Errors: base::CommError when it cannot be, or not in time.
  void wait_for(const Wait& wait);
  /// One look at what `wait_for` would fail for.
  void check_failures(const Wait& wait);
  /// Breaks the group because `peer` sends this rank something else than it takes.
  [[noreturn]] void fail_transfer(const Attempt& attempt, int peer, const std::string& sent,
                                  const std::string& taken);
  /// Breaks the group and says so, with `peer` to blame (-1: no single one).
  [[noreturn]] void fail(const Attempt& attempt, int peer, const std::string& what);
  /// An attempt of the current collective.
  Attempt attempt(int peer) const {
    return {name(mine_.op), sequence(), peer, collectives_limit_.count() > 0 ? collectives_limit_ : timeout_};
  }
  /// Time spent in waits that did not end at once.
  int64_t waited_ns() const { return waited_.count(); }

  /// Breaks the group, for `reason`, unless it is broken already, or this is a fork of the process that is in
  /// it.
  void abort(const std::string& reason);
  /// Ends this rank's use of the group in good order: peers finish what this rank has done its part of, and
  /// are told when they wait for more. This rank's own later collectives are c10::ValueError. In a fork of
  /// the process that is in the group this ends the fork's use of it alone.
  void leave();

 private:
  enum class Phase { opening, closing };

  bool is_fork() const { return getpid() != process_; }
  void announce(const Descriptor& descriptor);
  void complete_pending();
  Flag& flag(Phase phase, int peer) const;
  bool reached(Phase phase, int peer) const;
  void await(Phase phase, int peer);

  void check_alive(const Wait& wait, int peer);
  bool is_gone(int peer) const;
  void check_member(std::string_view op) const;
  void check_sound(const Attempt& attempt);
  bool is_broken() const;
  /// The last collective that was posted, lazy ones apart, was not closed.
  bool is_open() const { return controls_[size_t(rank_)]->closed.sequence.load() < opening_.sequence; }
  void throw_if_aborted(const Attempt& attempt);
  [[noreturn]] void throw_failure(const Attempt& attempt, int peer, const std::string& what) const;
  [[noreturn]] void fail_late(const Attempt& attempt);
  [[noreturn]] void fail_unfinished();
  [[noreturn]] void fail_mismatch(const Descriptor& theirs, int peer);
  void poison(int peer, const std::string& reason);

  std::shared_ptr<Progress> progress_;
  std::vector<Region> peers_;  // by rank; the own one is the heap's
  std::shared_ptr<Heap> heap_;
  std::vector<Control*> controls_;
  std::vector<std::byte*> bases_;
  std::vector<int> pids_;
  std::vector<Fd> lifetimes_;
  int rank_;
  pid_t process_ = getpid();
  bool has_left_ = false;
  std::chrono::milliseconds timeout_, collectives_limit_{0};
  WaitPolicy policy_;
  std::function<void()> while_waiting_ = [] {};
  std::chrono::nanoseconds waited_{0};
  Descriptor mine_;                   // of the current collective
  Opening opening_;                   // of the last collective that was not lazy
  std::shared_ptr<Opening> pending_;  // of a lazy collective; completed before the next post
};

}  // namespace shardwise::comm::shm
