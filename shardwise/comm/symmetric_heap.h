// The symmetric heap: memory that every rank of a group can read, and the collectives on it.
//
// comm/shm implements it for the ranks of one node; every other backend has none (null).
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <span>
#include <string_view>

#include "shardwise/base/split.h"
#include "shardwise/comm/counters.h"
#include "shardwise/comm/reduction.h"
#include "shardwise/comm/work.h"

namespace shardwise::comm {

/// What the caller may do with an input after the call. Autograd may overwrite any tensor that it holds.
enum class InputReuse : uint8_t { overwritable_on_return, free_only };

/// Pointers to every rank's partial sum, by rank: dense, row-major, read-only.
using PeerBuffers = std::span<const void* const>;
/// A kernel that reads the peers' buffers, which are valid until it returns. It must not call a collective.
using PeerBufferKernel = c10::function_ref<void(PeerBuffers partials)>;

/// The ranks' shared shards, which are read in place. Keeps this rank's shard alive. Peers' shards stay
/// readable too, because every rank holds and drops the same PeerShards between the same collectives; else
/// the next one is a base::CommError on all ranks (docs/adr/0002).
class PeerShards {
 public:
  virtual ~PeerShards() = default;
  /// Waits until `rank` has shared its shard and returns it, [range(rank), ...], read-only. The tensor keeps
  /// the PeerShards alive. Errors: c10::ValueError if the group has no such rank; base::CommError if the peer
  /// died, called another collective, or timed out.
  virtual at::Tensor get(int rank) = 0;
};

/// The ranks of a group on the cores of their machine.
struct RanksOnCores {
  int ranks = 0;           // of the group
  bool core_each = false;  // otherwise ranks share cores, and every wait is a context switch
  bool operator==(const RanksOnCores&) const = default;
};

/// The largest message of the one-shot all_reduce (comm/shm/one_shot.h).
struct OneShotLimit {
  /// The default, a measurement on this machine, or the caller.
  enum class From : uint8_t { table, measured, given };
  RanksOnCores on;          // the ranks for which the limit holds
  int64_t bytes = 0;        // of the largest message; 0: only empty messages use one-shot
  From from = From::table;  // where the limit comes from
  bool operator==(const OneShotLimit&) const = default;
};
/// Returns "table", "measured" or "given".
inline std::string_view name(OneShotLimit::From from) {
  constexpr std::string_view kNames[] = {"table", "measured", "given"};
  return kNames[size_t(from)];
}

/// The interface that comm/shm implements. Group checks the arguments. One thread at a time calls
/// collectives; any thread may free tensors.
class SymmetricHeap {
 public:
  virtual ~SymmetricHeap() = default;
  /// Returns an uninitialized, contiguous tensor that peers can read. Freed memory is reused only after a
  /// later collective of the group, when every peer has returned from the one that may still read it.
  virtual at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) = 0;
  /// Returns true if peers can read all of `x` in place, or if it has no elements.
  virtual bool contains(const at::Tensor& x) const = 0;
  /// Lets peers read `shard` [split.range(rank), ...], which must be contiguous and in the heap. Collective.
  /// The ranks' splits, tags (descriptor.h) and ops must be equal. Errors name `op`, the call that shares it.
  virtual std::shared_ptr<PeerShards> share_shard(const at::Tensor& shard, const base::Split& split,
                                                  uint64_t tag, Op op) = 0;

  /// Implement Group's collectives of these names, without the lists and copies of a backend's.
  /// Starts a sum of `x`, which must be contiguous and in the heap; `number` identifies it in the group.
  virtual std::unique_ptr<Work> all_reduce_async_(const at::Tensor& x, uint64_t number) = 0;
  virtual void all_gather_out(at::Tensor& out, const at::Tensor& shard, const base::Split& split,
                              int64_t dim) = 0;
  virtual void reduce_scatter_out(at::Tensor& out, const at::Tensor& x, const base::Split& split, int64_t dim,
                                  InputReuse reuse) = 0;

  /// Return the bytes of live tensors, now and at their peak since `reset_peak`.
  virtual int64_t live_bytes() const = 0;
  virtual int64_t peak_bytes() const = 0;
  virtual void reset_peak() = 0;
  /// Returns the largest message that all_reduce_ reduces by the one-shot algorithm, equal on all ranks.
  virtual const OneShotLimit& one_shot() const = 0;

  /// Calls `kernel` with every rank's `x`, for fused_all_reduce and fused_reduce_scatter. `rows` are the rows
  /// that each rank reads, or null if each reads all.
  virtual void run_on_peer_buffers(const at::Tensor& x, const base::Split* rows, PeerBufferKernel kernel) = 0;
};

}  // namespace shardwise::comm
