// Sends and receives in flight between this rank and others: started at once, in parts that fit MPI's int
// counts, and polled until they are complete; and the back-off between polls.
#pragma once
#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <sched.h>

#include <algorithm>
#include <any>
#include <chrono>
#include <thread>
#include <vector>

namespace shardwise::comm::mpi {

class Process;

/// The part size for messages that are never split.
inline constexpr int64_t kUnsplit = int64_t{1} << 30;

struct Address {
  MPI_Comm comm;
  int peer;
  int tag = 0;
};

/// A set of sends and receives in flight. A request that is incomplete when its Transfers is destroyed is
/// never freed, nor is its memory: MPI cannot take a request back and may still write to that memory.
class Transfers {
 public:
  /// A message longer than `part_bytes` is split into parts.
  Transfers(Process& process, int64_t part_bytes) : process_(&process), part_bytes_(part_bytes) {}
  ~Transfers();
  Transfers(Transfers&& other) noexcept;
  Transfers& operator=(Transfers&&) = delete;

  /// Start a message of a contiguous tensor, which is retained until it is complete. Empty tensors are not
  /// sent.
  void send(const at::Tensor& x, const Address& to);
  void receive(const at::Tensor& x, const Address& from);
  /// Start a message of memory that `retain` or the caller keeps alive.
  void send(const void* data, int64_t bytes, const Address& to);
  void receive(void* data, int64_t bytes, const Address& from);
  /// Starts the receive of one part, which may be shorter than `bytes`.
  void receive_at_most(void* data, int bytes, const Address& from);
  void retain(std::any owner) { retained_.push_back(std::move(owner)); }

  size_t count() const { return parts_.size(); }
  /// Progresses MPI and returns whether the first `count` parts are complete or one has failed.
  bool advance(size_t count);
  bool advance() { return advance(count()); }
  /// Fails the first incomplete part without calling MPI, which a stuck call may block.
  void mark_failed() { fail(MPI_ERR_OTHER, peer()); }
  /// Returns the peer of the part that failed, else of the first incomplete part.
  int peer() const { return error_ == MPI_SUCCESS ? parts_[done_].peer : failed_peer_; }
  /// Returns the sender of a completed part.
  int source(size_t part) const { return parts_[part].peer; }
  /// Returns the MPI error code of the first part that failed, else MPI_SUCCESS.
  int error() const { return error_; }
  /// Returns the bytes sent to the peers for which `counts(peer)` is true.
  template <class Counts>
  int64_t sent_bytes(const Counts& counts) const {
    int64_t bytes = 0;
    for (const Part& part : parts_) bytes += !part.is_received && counts(part.peer) ? part.bytes : 0;
    return bytes;
  }

 private:
  struct Part {
    MPI_Request request;
    int peer;
    int bytes;  // below 0 for a receive of any length
    bool is_received;
  };
  void start_receive(void* data, int bytes, int expected_bytes, const Address& from);
  bool test(Part& part);
  void fail(int code, int peer);

  Process* process_;
  int64_t part_bytes_;
  std::vector<Part> parts_;
  std::vector<std::any> retained_;
  size_t done_ = 0;          // number of completed parts at the front
  int error_ = MPI_SUCCESS;  // the first error
  int failed_peer_ = -1;
};

/// The longest sleep while a peer has not arrived.
inline constexpr std::chrono::microseconds kMaxSleep{1000};

/// Polling back-off: spins, then yields, then sleeps for increasing intervals. A sleeping rank cannot be
/// woken, and messages progress only while it polls (MPI has no progress thread here): sleep intervals are
/// short during a data transfer and grow while a peer has not arrived.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  struct Policy {
    std::chrono::nanoseconds spin{0}, yield{0};
    /// Returns a policy without spinning if the ranks outnumber the processors: a rank that spins on the core
    /// of the rank it waits for costs a time slice.
    static Policy choose(int ranks, int processors) {
      using std::chrono::microseconds;
      if (ranks <= processors) return {microseconds(50), microseconds(2000)};
      return {microseconds(0), microseconds(500)};
    }
  };

  Backoff(const Policy& policy, std::chrono::microseconds max_sleep)
      : policy_(policy), max_sleep_(max_sleep) {}

  Clock::duration elapsed() const { return Clock::now() - start_; }
  bool is_sleeping() const { return is_sleeping_; }

  /// Returns to spinning after a message has arrived, since the next one usually follows soon. Does not reset
  /// `elapsed`.
  void reset() {
    if (!is_sleeping_) return;
    is_sleeping_ = false;
    sleep_ = kMinSleep;
    awake_since_ = Clock::now();
  }

  void pause() {
    const auto waited = Clock::now() - awake_since_;
    if (waited < policy_.spin) {
      __builtin_ia32_pause();
    } else if (waited < policy_.spin + policy_.yield) {
      sched_yield();
    } else {
      is_sleeping_ = true;
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(2 * sleep_, max_sleep_);
    }
  }

 private:
  Policy policy_;
  static constexpr std::chrono::microseconds kMinSleep{20};
  std::chrono::microseconds sleep_ = kMinSleep, max_sleep_;
  bool is_sleeping_ = false;
  Clock::time_point start_ = Clock::now(), awake_since_ = start_;
};

}  // namespace shardwise::comm::mpi
