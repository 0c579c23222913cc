// One call of a Group: the state that copies of the group share, the checks of its arguments, and the guards
// that count it. For group*.cpp only.
#pragma once
#include <c10/core/GradMode.h>

#include <chrono>
#include <memory>
#include <vector>

#include "shardwise/base/profile.h"
#include "shardwise/base/split.h"
#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/group_guard.h"
#include "shardwise/comm/local_failure.h"
#include "shardwise/comm/symmetric_heap.h"

namespace shardwise::comm {

struct Group::State {
  std::shared_ptr<CollectiveBackend> backend;  // null for a group of one
  int rank = 0, size = 1;
  at::Device device = at::kCPU;
  SymmetricHeap* heap = nullptr;  // the backend's; null if it has none or the group does not use it
  /// The number of asynchronous operations started, equal on all ranks. Copies of a group count together,
  /// because their operations may be in flight at the same time.
  std::shared_ptr<uint64_t> async_operations = std::make_shared<uint64_t>(0);
  std::shared_ptr<Counters> counters = std::make_shared<Counters>();

  /// Runs the body of a call that sends `bytes`, and returns its result.
  template <class Body>
  auto call(Op op, int64_t bytes, const Body& body) const;
};

/// One call of a group: counts the time of its scope, and the part of it that the rank waited for peers.
class Timed {
 public:
  Timed(Counters& counters, CollectiveBackend& backend, Op op)
      : call_(backend.guard(), name(op).data()),
        counters_(counters),
        backend_(backend),
        profiled_(name(op).data()),
        waited_before_(backend.waited_ns()),
        start_(Clock::now()) {}
  ~Timed() {
    const int64_t waited_ns = backend_.waited_ns() - waited_before_;
    counters_.busy_ns += std::chrono::nanoseconds(Clock::now() - start_).count();
    counters_.waiting_ns += waited_ns;
    profiled_.add_waiting(waited_ns);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  GroupGuard::Call call_;  // first, because the counters belong to the call in flight
  Counters& counters_;
  const CollectiveBackend& backend_;
  base::ProfiledOp profiled_;
  int64_t waited_before_;
  Clock::time_point start_;
};

/// A call that also counts the bytes that the rank copied in its scope, and disables autograd.
class Counted {
 public:
  Counted(Counters& counters, CollectiveBackend& backend, Op op)
      : timed_(counters, backend, op),
        counters_(counters),
        backend_(backend),
        op_(op),
        copied_before_(backend.copied_bytes()) {}
  /// Counts a call that sends `bytes`, too.
  Counted(Counters& counters, CollectiveBackend& backend, Op op, int64_t bytes)
      : Counted(counters, backend, op) {
    counters_[op].calls += 1;
    counters_[op].bytes += bytes;
  }
  ~Counted() { counters_[op_].copied_bytes += backend_.copied_bytes() - copied_before_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  Timed timed_;
  Counters& counters_;
  const CollectiveBackend& backend_;
  Op op_;
  int64_t copied_before_;
  c10::NoGradGuard no_grad_;
};

template <class Body>
auto Group::State::call(Op op, int64_t bytes, const Body& body) const {
  const Counted counted(*counters, *backend, op, bytes);
  return abort_if_failing(*backend, body);
}

/// Checks of arguments before a collective, with the same result on all ranks, so that no rank hangs. They
/// throw c10::ValueError naming `op`. Those with a `dim` return it as a non-negative dim.
void check_root(const char* op, int root, int size);
void check_peer(const char* op, int peer, int rank, int size);
int64_t check_shard(const char* op, const at::Tensor& shard, const base::Split& split, int64_t dim, int rank,
                    int size);
int64_t check_full(const char* op, const at::Tensor& x, const base::Split& split, int64_t dim, int size);
void check_output(const char* op, const at::Tensor& out, const at::Tensor& x);
/// Checks that `x` is dense, on the backend's device, and no conjugated or negated view.
void check_dense_on(const char* op, const at::Tensor& x, at::Device device);
/// Checks the input of an asynchronous collective. `symmetric` may be null.
void check_async_input(const char* op, const at::Tensor& x, at::Device device,
                       const SymmetricHeap* symmetric);
void check_divisible(const char* op, const at::Tensor& x, int size);

/// Returns an uninitialized tensor like `x`, with `size` in `dim`.
at::Tensor empty_with_size(const at::Tensor& x, int64_t dim, int64_t size);
/// Returns the bytes that a rank sends in an all_reduce; Split::even gives its slice.
int64_t all_reduce_bytes(const at::Tensor& x, int rank, int size);
/// Returns the bytes that a rank sends in a reduce_scatter of `x` along `dim`.
int64_t reduce_scatter_bytes(const at::Tensor& x, const base::Split& split, int64_t dim, int rank);

}  // namespace shardwise::comm
