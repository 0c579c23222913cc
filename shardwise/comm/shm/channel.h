// The synchronization of a group: post a collective, wait for the peers' posts, detect failed ranks.
//
// Independent of tensors. A collective is a post, an arrival barrier (every peer has posted it, with a
// matching descriptor) and, if the peers' reads or writes must be complete, a departure barrier. Messages
// between two ranks (messages.h) wait and fail as collectives do.
#pragma once
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/base/hash.h"
#include "shardwise/comm/group_guard.h"
#include "shardwise/comm/shm/control.h"
#include "shardwise/comm/shm/heap.h"
#include "shardwise/comm/shm/rendezvous.h"

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

/// How long a wait spins and yields before it sleeps. It depends on whether each rank has a core of its own:
/// a rank that spins on the core of the rank it waits for costs a whole time slice (measured: a thousand
/// times the latency).
struct WaitPolicy {
  std::chrono::nanoseconds spin;
  std::chrono::nanoseconds yield;
  static WaitPolicy choose(int ranks, int cores);
};

/// Stores `sequence` and wakes the ranks that sleep on the flag.
void advance(Flag& flag, uint64_t sequence);
/// Adds one (several ranks may do so concurrently) and wakes the ranks that sleep on the flag.
void ring(Flag& flag);
/// Wakes the ranks that sleep on the flag.
void wake_sleepers(Flag& flag);

/// The peers that have arrived at one collective so far, and their descriptors.
struct Arrivals {
  explicit Arrivals(int ranks) : descriptors(size_t(ranks)), seen(size_t(ranks)) {}
  uint64_t sequence = 0;
  std::vector<Descriptor> descriptors;
  std::vector<uint8_t> seen;
};

class Channel;

/// The job that a group is a part of. Its channel must outlive the group's.
struct PartOfJob {
  Channel* job = nullptr;       // null: the group is the whole job
  std::vector<int> ranks = {};  // of the job, that form the group
};

/// One rank's endpoint in the group. Collectives and messages are called from one thread at a time, in the
/// process that connected it (GroupGuard::Call checks both); `abort` and `leave` from any thread.
class Channel : public GroupGuard {
 public:
  Channel(Rendezvous rendezvous, int rank, std::chrono::milliseconds timeout, const PartOfJob& part = {});
  ~Channel() { leave(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int size() const { return int(controls_.size()); }
  uint64_t sequence() const { return progress_->started.load(std::memory_order_relaxed); }
  const std::shared_ptr<Heap>& heap() const { return heap_; }

  /// Returns the start of a rank's region in this process's address space.
  std::byte* base(int rank) const { return bases_[size_t(rank)]; }
  Control& control(int rank) const { return *controls_[size_t(rank)]; }

  /// Returns the payload of this rank's next slot, to be written before `post`. Errors: those of `post`.
  std::byte* next_payload(Op op);

  /// Posts this rank's next collective, which `depart` ends. First completes the arrival barrier of a
  /// deferred collective. Errors: base::CommError on all ranks if this rank never departed from the previous
  /// collective: a local error interrupted it, and its peers may be waiting.
  Arrivals& post(const Descriptor& descriptor);
  /// Posts a collective whose peers are waited for one by one, possibly after later calls. The next post
  /// waits for the remaining peers.
  std::shared_ptr<Arrivals> post_deferred(const Descriptor& descriptor);
  /// Adds the PeerShards of deferred collective `number` to those that this rank holds, or removes them. All
  /// ranks must do so between the same posts, for every post compares what the ranks hold. From any thread.
  void toggle_shard(uint64_t number) { held_shards_ ^= base::mix(base::kHashBegin, number); }
  /// Waits until `peer` has posted the collective, and compares the descriptors. Errors: base::CommError.
  const Descriptor& wait_for_arrival(Arrivals& arrivals, int peer);
  /// Arrival barrier: waits until all peers have posted the collective. Errors: base::CommError.
  void wait_for_arrivals(Arrivals& arrivals);
  /// Returns the payload of `peer`'s slot for this collective. Call it after `wait_for_arrival`.
  const std::byte* payload(const Arrivals& arrivals, int peer) const;

  /// Declares that this rank has finished reading the inputs of the current collective.
  void depart();
  /// Departure barrier: waits until all peers have departed from the current collective.
  void wait_for_departures();

  /// Checks that this rank may start a call. Errors: c10::ValueError after `leave`; base::CommError if the
  /// group is aborted, or if this rank never departed from its last collective.
  void check_usable(const WaitContext& context);
  /// Sets the callback that long waits run periodically, e.g. to drain full mailboxes so that peers can make
  /// progress.
  void set_wait_callback(std::function<void()> callback) { wait_callback_ = std::move(callback); }
  /// Waits until `wait.ready`. Errors: base::CommError if the wait times out or cannot succeed.
  void wait_for(const Wait& wait);
  /// Checks once for the failures of `wait_for`, without waiting.
  void check_failures(const Wait& wait);
  /// Aborts the group because the message from `peer` differs from what this rank receives.
  [[noreturn]] void fail_transfer(const WaitContext& context, int peer, const std::string& sent,
                                  const std::string& expected);
  /// Aborts the group and throws, with `peer` as the cause (-1: no single rank).
  [[noreturn]] void fail(const WaitContext& context, int peer, const std::string& what);
  /// Returns the wait context of the current collective.
  WaitContext wait_context(int peer) const {
    return {name(descriptor_.op), sequence(), peer, collectives_limit()};
  }
  /// Returns the time spent in waits that were not ready immediately.
  int64_t waited_ns() const { return waited_.count(); }

  /// A failure of the group: the rank at fault, or −1, and the reason.
  struct Failure {
    int peer;
    std::string reason;
  };
  /// Returns the failure that a rank has reported. From any thread.
  std::optional<Failure> reported_failure() const;
  /// Returns that failure, or the exit of a rank that has not left, which it reports. From any thread.
  std::optional<Failure> find_failure();

  /// Aborts the group with `reason`, and the job that it is a part of. No effect if it is already aborted, or
  /// in a fork of the member process.
  void abort(const std::string& reason);
  /// Leaves the group cleanly. Peers can finish collectives that this rank has completed its part of, and get
  /// an error if they wait for more. Later collectives of this rank are c10::ValueError. In a fork of the
  /// member process, only the fork leaves.
  void leave();

 private:
  enum class Phase { arrival, departure };

  Control& local() const { return *controls_[size_t(rank())]; }
  void announce(const Descriptor& descriptor);
  void complete_deferred();
  Flag& flag(Phase phase, int peer) const;
  bool reached(Phase phase, int peer) const;
  void wait_for_phase(Phase phase, int peer);

  void check_alive(const Wait& wait, int peer);
  bool has_exited(int peer) const;
  void check_not_broken(const WaitContext& context);
  bool is_broken() const;
  /// True if this rank has not departed from the last collective that it posted (deferred ones excluded).
  bool in_collective() const { return local().departed.sequence.load() < arrivals_.sequence; }
  void throw_if_aborted(const WaitContext& context);
  void check_job(const WaitContext& context);
  [[noreturn]] void fail_with_job(const WaitContext& context, const Failure& failure);
  [[noreturn]] void fail_timeout(const WaitContext& context);
  [[noreturn]] void fail_unfinished();
  [[noreturn]] void fail_mismatch(const Descriptor& theirs, int peer);
  void set_abort_reason(int peer, const std::string& reason);

  PartOfJob part_;
  std::shared_ptr<Progress> progress_;
  std::vector<Region> peers_;  // by rank, without the local region, which the heap owns
  std::shared_ptr<Heap> heap_;
  std::vector<Control*> controls_;
  std::vector<std::byte*> bases_;
  std::vector<int> pids_;
  std::vector<Fd> pidfds_;
  WaitPolicy policy_;
  std::function<void()> wait_callback_ = [] {};
  std::chrono::nanoseconds waited_{0};
  Descriptor descriptor_;                  // of the current collective
  Arrivals arrivals_;                      // of the last collective that was not deferred
  std::atomic<uint64_t> held_shards_ = 0;  // hashes of the numbers of those held
  std::shared_ptr<Arrivals> deferred_;     // of a deferred collective; completed before the next post
};

}  // namespace shardwise::comm::shm
