// A group of ranks and its collectives, on plain tensors, without autograd (parallel/ adds that).
//
// A Group is a small value over a c10d::Backend; copies share it. It is passed, never found: there is no
// default group. A group of one returns at once from everything, with the input itself where it can, and
// counts nothing. All ranks call the same collectives in the same order, from one thread at a time.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "shardwise/base/split.h"
#include "shardwise/comm/counters.h"
#include "shardwise/comm/symmetric_heap.h"

namespace c10d {
class Backend;
}

namespace shardwise::comm {

class ChunkedAllGather;
class Work;
class ChunkedReduceScatter;

class Group {
 public:
  /// A group of one.
  Group();
  /// Ranks joined by `backend`; `symmetric` is its shared memory, or null.
  explicit Group(c10::intrusive_ptr<c10d::Backend> backend,
                 std::shared_ptr<SymmetricHeap> symmetric = nullptr);

  int rank() const;
  int size() const;

  /// The same group without shared memory: every crossing takes the path that other backends take.
  Group without_symmetric_heap() const;
  bool has_symmetric_heap() const;
  /// The same group, counting from zero on counters of its own.
  Group with_new_counters() const;

  /// Where the tensors of all calls lie. On a GPU a call returns once it is queued on the current stream,
  /// barrier excepted, and sums are the backend's own (comm/nccl/nccl.h).
  at::Device device() const;
  /// Uninitialized, on `device`; readable by peers where the group has shared memory, ordinary otherwise.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) const;

  /// Overwrites `x` on every rank with `root`'s. Cost: numel·(t−1) elements at the root.
  void broadcast_(at::Tensor& x, int root) const;

  /// Concatenation of the ranks' shards along `dim`; shard sizes are `split`'s ranges.
  /// Cost: own·(t−1) elements.
  at::Tensor all_gather(const at::Tensor& shard, const base::Split& split, int64_t dim = 0) const;

  /// Sum, or another reduction, over the ranks, in rank order, bf16 and fp16 accumulated in fp32; the same
  /// bits on every rank. Cost: own·(t−1) + (total − own) elements, own being the even slice of the flat
  /// message. The result came from `empty`; those of the other collectives are ordinary memory.
  /// Errors: c10::ValueError for a dtype that the reduction does not take.
  at::Tensor all_reduce(const at::Tensor& x, Reduce reduce = Reduce::sum) const;
  /// In place, and without staging when `x` is contiguous and came from `empty`. Small ones go with the
  /// announcement instead (comm/shm/one_shot.h: one synchronization, one copy).
  void all_reduce_(at::Tensor& x, Reduce reduce = Reduce::sum) const;

  /// This rank's range along `dim` of the sum over the ranks. Cost: total − own elements.
  /// Without staging when `x` is contiguous, came from `empty`, and dim is 0.
  at::Tensor reduce_scatter(const at::Tensor& x, const base::Split& split, int64_t dim = 0) const;
  /// The same, written into `out` [split.range(rank), ...]. Peers may still read an unstaged `x` after the
  /// return: it may be dropped, but not written to before a later collective other than `share_shard` is
  /// over. (All others return when nobody reads their input any more.)
  void reduce_scatter_out(at::Tensor& out, const at::Tensor& x, const base::Split& split) const;

  /// all_gather along dim 0 whose rows can be used as they arrive. For groups without shared memory; with it,
  /// `share_shard` needs no copy.
  std::shared_ptr<ChunkedAllGather> all_gather_chunked(const at::Tensor& shard,
                                                       const base::Split& split) const;
  /// reduce_scatter_out whose input is handed over as it is made. `x` is contiguous, from `empty`; it may be
  /// dropped after the ChunkedReduceScatter's end, but not written to before a later collective is over. Two
  /// ranks or more.
  std::unique_ptr<ChunkedReduceScatter> reduce_scatter_chunked(const at::Tensor& x,
                                                               const base::Split& split) const;
  /// all_reduce_ of a sum in two parts, the second of which ends it. `x` is contiguous, from `empty`, and
  /// nobody's else in between. Bits and cost: all_reduce_'s; in shared memory never in one shot.
  std::unique_ptr<Work> all_reduce_async_(const at::Tensor& x) const;
  /// In place of an all_reduce whose sum is an intermediate value of `read`: it is called once, with every
  /// rank's `x` where it lies. One synchronization; nothing is copied unless `x` is strided or did not come
  /// from `empty`. Peers may still read `x` after the return, as of reduce_scatter_out. Cost: all_reduce's.
  /// Errors: c10::ValueError without shared memory (a group of one has its own term).
  void fused_all_reduce(const at::Tensor& x, PeerBufferKernel read) const;
  /// The same in place of a reduce_scatter along dim 0: `read` sums this rank's rows of the terms. Cost: its.
  void fused_reduce_scatter(const at::Tensor& x, const base::Split& split, PeerBufferKernel read) const;

  /// `root` holds [t·n, ...] and rank r gets rows [r·n, (r+1)·n): `x` is read at the root only, but gives
  /// every rank shape and dtype of the whole. Cost: total − own at the root.
  at::Tensor scatter(const at::Tensor& x, int root) const;
  /// [t·n, ...] at the root, undefined elsewhere. Cost: own at the others.
  at::Tensor gather(const at::Tensor& shard, int root) const;
  /// Row block j of rank i becomes row block i of rank j; dim 0 divides by t. Cost: total − own.
  at::Tensor all_to_all(const at::Tensor& x) const;
  void barrier() const;

  /// Hands `x` to rank `to`; returns when `x` may be written to again, which may be before `to` receives it.
  /// Messages of one sender and tag arrive in order. Cost: payload.
  void send(const at::Tensor& x, int to, int tag = 0) const;
  /// Overwrites `x` with the next message that rank `from` sends with `tag`; shapes must have as many
  /// elements.
  void recv_(at::Tensor& x, int from, int tag = 0) const;

  /// Makes `shard` readable by the peers where it lies; a collective that stands for an all_gather and copies
  /// nothing (a shard outside the shared memory is copied into it once). Needs has_symmetric_heap().
  /// Every later reading of all peers' shards is counted by `record_peer_read`. The shard must not be written
  /// to as long as it is exposed, nor before a later collective is over.
  std::shared_ptr<PeerShards> share_shard(const at::Tensor& shard, const base::Split& split) const;
  /// Counts one all_gather of `shard` whose bytes were read in place.
  void record_peer_read(const at::Tensor& shard) const;

  /// Poisons the group: every peer's current or next wait fails naming `reason`.
  void abort(const std::string& reason) const;

  const Counters& counters() const;
  /// The shared memory's own figures; null without.
  SymmetricHeap* symmetric_heap() const;

 private:
  struct State;
  explicit Group(std::shared_ptr<State> state);
  void scatter_sum(at::Tensor& out, const at::Tensor& x, const base::Split& split, int64_t dim,
                   InputReuse then) const;
  void fuse_with(Op op, const at::Tensor& x, const base::Split* split, PeerBufferKernel read) const;
  std::shared_ptr<State> state_;
};

}  // namespace shardwise::comm
