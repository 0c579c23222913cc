// The interface of a backend: the collectives and messages behind Group and behind c10d (c10d_backend.h).
//
// comm/shm and comm/mpi implement it, and C10dCollectives (c10d_collectives.cpp) for any other c10d::Backend.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/reduction.h"
#include "shardwise/comm/work.h"

namespace shardwise::comm {

class GroupGuard;
class SymmetricHeap;

inline constexpr int kAnySource = -1;

/// A group's collectives and messages on dense tensors of any strides on `device()`.
///
/// The caller has checked the arguments; only the backend can check that the ranks' arguments match.
/// `pieces[r]` belongs to rank r; collectives with a root read lists at the root only. All ranks get the same
/// bits. Errors: base::CommError, also for sizes that differ; c10::ValueError if a reduction does not support
/// the dtype.
class CollectiveBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  virtual ~CollectiveBackend() = default;

  virtual std::string backend_name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual at::Device device() const { return at::kCPU; }
  /// Returns whether a collective makes progress only inside a call or a wait: computing in between hides
  /// none of its time.
  virtual bool is_synchronous() const { return true; }
  /// Returns the group's symmetric heap, or null if it has none.
  virtual SymmetricHeap* symmetric_heap() { return nullptr; }
  /// Returns the node of each rank, numbered in the order of their lowest ranks; empty if the backend does
  /// not know.
  virtual std::vector<int> nodes() const { return {}; }
  /// Returns what limits the group to one call at a time (GroupGuard::Call).
  virtual GroupGuard* guard() = 0;
  /// Returns the number of arrival barriers so far, equal on all ranks: a long collective may need several.
  virtual uint64_t sequence() const = 0;
  /// The limit of a wait for another rank. Set it from the thread that calls collectives.
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  /// Replaces the timeout in collectives, but not in messages; 0 restores it.
  virtual void limit_collectives(std::chrono::milliseconds limit) = 0;
  /// Returns the bytes that this rank has copied in collectives so far (counters.h); 0 without a symmetric
  /// heap.
  virtual int64_t copied_bytes() const { return 0; }
  /// Returns how long this rank has waited for peers so far, PeerShards::get included; 0 without a symmetric
  /// heap.
  virtual int64_t waited_ns() const { return 0; }

  virtual void broadcast_(at::Tensor& x, int root) = 0;
  virtual void all_reduce_(at::Tensor& x, Reduce reduce) = 0;
  virtual void all_gather(Tensors& pieces, const at::Tensor& shard) = 0;
  /// Gathers shards of one size into consecutive equal parts of `out`, which is contiguous.
  virtual void all_gather_even(at::Tensor& out, const at::Tensor& shard) {
    const at::Tensor flat = out.view({-1});
    Tensors pieces;
    for (int peer = 0; peer < size(); ++peer)
      pieces.push_back(flat.narrow(0, peer * shard.numel(), shard.numel()).view(shard.sizes()));
    all_gather(pieces, shard);
  }
  virtual void reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) = 0;
  /// Reduces and scatters `x` in equal consecutive parts, one per rank.
  virtual void reduce_scatter_even(at::Tensor& out, const at::Tensor& x, Reduce reduce) = 0;
  virtual void barrier() = 0;

  // Pieces may have any size, as long as sender and receiver agree.
  virtual void scatter(at::Tensor& out, const Tensors& pieces, int root) = 0;
  virtual void gather(Tensors& pieces, const at::Tensor& shard, int root) = 0;
  virtual void all_to_all(Tensors& outs, const Tensors& pieces) = 0;
  /// Exchanges row blocks along dim 0: `x_rows` are the rows to each rank, `out_rows` those from each rank.
  virtual void all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& x,
                               const std::vector<int64_t>& x_rows) = 0;

  /// Start a sum, a broadcast or a gather of contiguous tensors, which the Work's wait completes. The backend
  /// must outlive the Work. A synchronous backend runs the collective in the wait.
  virtual std::unique_ptr<Work> start_all_reduce_(const at::Tensor& x) {
    return std::make_unique<CallWork>([this, target = x]() mutable { all_reduce_(target, Reduce::sum); });
  }
  virtual std::unique_ptr<Work> start_broadcast_(const at::Tensor& x, int root) {
    return std::make_unique<CallWork>([this, target = x, root]() mutable { broadcast_(target, root); });
  }
  virtual std::unique_ptr<Work> start_gather(const Tensors& pieces, const at::Tensor& shard, int root) {
    return std::make_unique<CallWork>(
        [this, targets = pieces, shard, root]() mutable { gather(targets, shard, root); });
  }

  /// Returns when `x` may be overwritten, possibly before `to` receives it.
  virtual void send(const at::Tensor& x, int to, int tag) = 0;
  /// Posts a receive into `x`; `from` may be kAnySource.
  virtual std::unique_ptr<PendingReceive> receive(const at::Tensor& x, int from, int tag) = 0;

  /// Aborts the group: every peer's current or next wait throws an error with `reason`.
  virtual void abort(const std::string& reason) = 0;
  /// Ends this rank's use of the group cleanly.
  virtual void leave() = 0;
};

}  // namespace shardwise::comm
