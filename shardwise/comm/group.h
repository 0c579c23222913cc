// A group of ranks and its collectives on plain tensors, without autograd (parallel/ adds that).
//
// A Group is a small value that refers to a CollectiveBackend; copies share the backend. Groups are passed as
// arguments: there is no default group. With one rank, every collective returns at once, returns its input
// where possible, and counts nothing. All ranks call the same collectives in the same order, from one thread
// at a time: a call while another is in flight is a c10::ValueError, as is any call in a fork of the process.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>

#include "shardwise/base/split.h"
#include "shardwise/comm/counters.h"
#include "shardwise/comm/symmetric_heap.h"
#include "shardwise/comm/work.h"

namespace c10d {
class Backend;
}

namespace shardwise::comm {

class CollectiveBackend;

/// The default time that a rank waits for another.
inline constexpr std::chrono::milliseconds kTimeout{300'000};

/// A group of ranks with its collectives. If one fails, the rank that fails throws its own error, such as
/// that of a lack of memory, and the others base::CommError, which quotes it; the group is then unusable, and
/// the contents of the call's tensors undefined, because a late peer may still write its part of a sum into
/// one that is in the symmetric heap. A small value that is passed to all code that communicates.
class Group {
 public:
  /// Constructs a group of one rank, whose tensors are on the CPU.
  Group();
  /// Constructs a group of one rank, whose tensors are on `device`.
  explicit Group(at::Device device);
  /// Constructs a group of the ranks of `backend`.
  explicit Group(std::shared_ptr<CollectiveBackend> backend);
  /// Constructs a group over any backend of c10d, such as NCCL's (c10d_collectives.cpp).
  explicit Group(const c10::intrusive_ptr<c10d::Backend>& backend);

  /// Returns this rank, from 0 to size() − 1.
  int rank() const;
  /// Returns the number of ranks.
  int size() const;

  /// Returns this group without the symmetric heap: its collectives are those that every backend has.
  Group without_symmetric_heap() const;
  /// Returns true if the ranks of the group share memory.
  bool has_symmetric_heap() const;
  /// Returns the node of each rank, numbered in the order of their lowest ranks; empty if the backend does
  /// not know, as NCCL.
  std::vector<int> nodes() const;
  /// Returns this group with new counters, which start at zero.
  Group with_new_counters() const;

  /// Returns the device of the tensors in all calls. On a GPU, calls other than barrier return once they are
  /// queued on the current CUDA stream, and the backend chooses the order of sums (comm/nccl/nccl.h).
  at::Device device() const;
  /// True if a collective makes progress only inside a call or a wait, as in shared memory and over MPI:
  /// computing in between hides none of its time. Backends of c10d that are not ours progress asynchronously.
  bool is_synchronous() const;
  /// Returns an uninitialized tensor on `device()`, in the symmetric heap if the group has one.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) const;

  /// Copies `root`'s `x` into `x` on every rank. Cost: the root sends numel·(t−1) elements.
  void broadcast_(at::Tensor& x, int root) const;

  /// Returns the concatenation of the ranks' shards along `dim`; `split` gives the shard sizes.
  /// Cost: shard·(t−1) elements.
  at::Tensor all_gather(const at::Tensor& shard, const base::Split& split, int64_t dim = 0) const;
  /// Writes the concatenation along dim 0 into `out` [split.size(), ...]. `shard` may be this rank's rows of
  /// `out`: those are then not copied, nor is anything staged if `out` is contiguous and allocated by
  /// `empty`.
  void all_gather_out(at::Tensor& out, const at::Tensor& shard, const base::Split& split) const;

  /// Returns the sum (or another reduction) of `x` over the ranks, accumulated in rank order, in fp32 for
  /// bf16 and fp16. All ranks get the same bits. The result is allocated by `empty`; results of the other
  /// collectives are in ordinary memory.
  /// Cost: slice·(t−1) + (numel − slice) elements; slice = this rank's even part of the flat tensor.
  /// Errors: c10::ValueError if the reduction does not support the dtype.
  at::Tensor all_reduce(const at::Tensor& x, Reduce reduce = Reduce::sum) const;
  /// Reduces `x` in place, without staging if `x` is contiguous and allocated by `empty`. Small tensors use
  /// one-shot (comm/shm/one_shot.h): one synchronization, one copy. Bits, cost and errors: see all_reduce.
  void all_reduce_(at::Tensor& x, Reduce reduce = Reduce::sum) const;

  /// Sums `x` over the ranks and returns this rank's range along `dim`. Cost: numel − result elements.
  /// Nothing is staged if `x` is contiguous, allocated by `empty`, and dim is 0.
  at::Tensor reduce_scatter(const at::Tensor& x, const base::Split& split, int64_t dim = 0) const;
  /// Sums `x` over the ranks and writes this rank's rows into `out` [split.range(rank), ...], which may be
  /// these rows of `x`. Peers may still read the other rows of an unstaged `x` after the call returns: it may
  /// be freed, but not overwritten, until a later collective other than `share_shard` has completed. (All
  /// other collectives return when no peer reads their input any more.)
  void reduce_scatter_out(at::Tensor& out, const at::Tensor& x, const base::Split& split) const;

  /// Starts an all_gather_out into `out`, contiguous and unused until `Work::wait()` completes it; `shard`
  /// must not change before. A synchronous backend does everything in the wait.
  std::unique_ptr<Work> all_gather_out_async(const at::Tensor& out, const at::Tensor& shard,
                                             const base::Split& split) const;
  /// Starts an all_gather along dim 0 whose chunks can be used as they arrive. For groups without a symmetric
  /// heap; with one, `share_shard` avoids the copy.
  std::shared_ptr<ChunkedAllGather> all_gather_chunked(const at::Tensor& shard,
                                                       const base::Split& split) const;
  /// Starts a pipelined reduce_scatter along dim 0: the caller reports each rank's rows of `x` by
  /// `chunk_ready(i)` as they become available. `x` must be contiguous and allocated by `empty`. After
  /// `wait` it may be freed, but not overwritten until a later collective has completed. Needs two ranks or
  /// more.
  std::unique_ptr<ChunkedReduceScatter> reduce_scatter_chunked(const at::Tensor& x,
                                                               const base::Split& split) const;
  /// Starts an asynchronous all_reduce_ (sum); `Work::wait()` completes it in place. `x` must be contiguous,
  /// allocated by `empty`, and unused until then. Bits and cost: those of all_reduce_; with a symmetric heap
  /// it never uses one-shot.
  std::unique_ptr<Work> all_reduce_async_(const at::Tensor& x) const;
  /// Fused all_reduce: calls `kernel` once with pointers to every rank's `x`, so that the sum need not be
  /// materialized. One synchronization; nothing is copied if `x` is contiguous and allocated by `empty`.
  /// Peers may still read `x` after the call returns, as in reduce_scatter_out. Cost: that of all_reduce.
  /// Errors: c10::ValueError without a symmetric heap, except in a group of one.
  void fused_all_reduce(const at::Tensor& x, PeerBufferKernel kernel) const;
  /// Fused reduce_scatter along dim 0: calls `kernel` once with pointers to every rank's `x`, of which it
  /// sums this rank's rows. Cost: that of reduce_scatter. Otherwise like fused_all_reduce.
  void fused_reduce_scatter(const at::Tensor& x, const base::Split& split, PeerBufferKernel kernel) const;

  /// Sends rows [r·n, (r+1)·n) of the root's `x` [t·n, ...] to rank r and returns them. Other ranks pass an
  /// `x` of the same shape and dtype, which is not read. Cost: the root sends numel − shard elements.
  at::Tensor scatter(const at::Tensor& x, int root) const;
  /// Returns the ranks' shards [n, ...] as [t·n, ...] at the root and an undefined tensor elsewhere.
  /// Cost: the other ranks send shard elements each.
  at::Tensor gather(const at::Tensor& shard, int root) const;
  /// Returns a tensor whose row block i is row block `rank` of rank i's `x`; t divides dim 0.
  /// Cost: numel − block elements.
  at::Tensor all_to_all(const at::Tensor& x) const;
  /// Returns when every rank has called it.
  void barrier() const;

  /// Sends `x` to rank `to`; returns when `x` may be overwritten, possibly before `to` receives it. Messages
  /// with the same sender and tag arrive in order. Cost: numel elements.
  void send(const at::Tensor& x, int to, int tag = 0) const;
  /// Receives the next message from rank `from` with `tag` into `x`; the shape may differ, the number of
  /// elements may not.
  void recv_(at::Tensor& x, int from, int tag = 0) const;

  /// Lets peers read `shard` in place: a collective that replaces an all_gather and copies nothing (a shard
  /// outside the symmetric heap is copied into it once). Needs has_symmetric_heap(). Call `record_peer_read`
  /// for each further read of all peers' shards. The shard must not be overwritten while the result lives,
  /// nor until a later collective has completed.
  std::shared_ptr<PeerShards> share_shard(const at::Tensor& shard, const base::Split& split) const;
  /// Returns an uninitialized tensor that is one memory on all ranks, in the symmetric heap of the lowest
  /// one, as long as any rank holds it: what a rank writes, the others read after the group's next
  /// collective. Collective; needs has_symmetric_heap() or a group of one. All ranks must drop it, with all
  /// of its views, between the same collectives. Counted as a barrier.
  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) const;
  /// Counts one all_gather of `shard` whose bytes were read in place.
  void record_peer_read(const at::Tensor& shard) const;

  /// Aborts the group: every peer's current or next wait throws an error with `reason`.
  void abort(const std::string& reason) const;

  /// Returns the backend, or null in a group of one.
  CollectiveBackend* backend() const;
  /// Returns what this group has counted since its construction.
  const Counters& counters() const;
  /// Returns the symmetric heap with its statistics, or null if there is none.
  SymmetricHeap* symmetric_heap() const;

 private:
  struct State;
  explicit Group(std::shared_ptr<State> state);
  ChunkedAllGather::Works start_chunks(const at::Tensor& output, const at::Tensor& shard,
                                       const base::Split& split) const;
  at::Tensor copy_to_reduce(const at::Tensor& x) const;
  void reduce_scatter_into(at::Tensor& out, const at::Tensor& x, const base::Split& split, int64_t dim,
                           InputReuse reuse) const;
  void run_on_peer_buffers(Op op, const at::Tensor& x, const base::Split* split,
                           PeerBufferKernel kernel) const;
  std::shared_ptr<State> state_;
};

}  // namespace shardwise::comm
