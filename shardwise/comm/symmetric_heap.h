// Memory that every rank of a group can read: what the ranks of one host can do beyond c10d.
//
// Implemented by comm/shm; absent (null) on every other backend.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <span>

#include "shardwise/base/split.h"
#include "shardwise/comm/reduction.h"
#include "shardwise/comm/work.h"

namespace shardwise::comm {

/// What a caller does with a collective's input afterward: autograd may write to any tensor that it holds.
enum class InputReuse : uint8_t { overwritable_on_return, free_only };

/// Where the terms of a sum over the ranks lie, by rank: dense, row-major, never written to.
using PeerBuffers = std::span<const void* const>;
/// What sums them in passing: they are readable until it returns. It calls no collective.
using PeerBufferKernel = c10::function_ref<void(PeerBuffers terms)>;

/// One shard per rank, readable where it lies. Keeps the own shard alive; holding it keeps peers' shards
/// readable, because every rank of a program holds and drops the same exposures in the same order
/// (docs/adr/0002).
class PeerShards {
 public:
  virtual ~PeerShards() = default;
  /// `rank`'s shard, [range(rank), ...]; waits until that rank has exposed it. Never written to. The tensor
  /// holds the exposure. Errors: base::CommError when the peer died, runs another program, or the timeout
  /// passed.
  virtual at::Tensor read(int rank) = 0;
};

/// Arguments are checked by Group. Collectives come from one thread at a time; tensors may die on any.
class SymmetricHeap {
 public:
  virtual ~SymmetricHeap() = default;
  /// Uninitialized, contiguous, in memory that peers can read. Freed memory is reused only after a later
  /// collective of the group, when every peer has left the one that may still read it.
  virtual at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) = 0;
  /// Whether peers can read all of `x` where it lies (trivially so when it has no elements).
  virtual bool contains(const at::Tensor& x) const = 0;
  /// Collective. `shard` [split.range(rank), ...] in this memory and contiguous. `purpose` is compared over
  /// the ranks, as the split is.
  virtual std::shared_ptr<PeerShards> share_shard(const at::Tensor& shard, const base::Split& split,
                                                  uint64_t purpose) = 0;

  /// Group's collectives of these names, without the splitting into lists and the copies of c10d's forms.
  virtual void all_reduce_(at::Tensor& x, Reduce reduce) = 0;
  /// A sum. `x` contiguous and in this memory; `purpose` tells it from the group's other ones.
  virtual std::unique_ptr<Work> all_reduce_async_(const at::Tensor& x, uint64_t purpose) = 0;
  virtual void all_gather_out(at::Tensor& out, const at::Tensor& shard, const base::Split& split,
                              int64_t dim) = 0;
  virtual void reduce_scatter_out(at::Tensor& out, const at::Tensor& x, const base::Split& split, int64_t dim,
                                  InputReuse then) = 0;

  /// Logical bytes handed out and not yet freed; and the most there have been since `reset_peak`.
  virtual int64_t live_bytes() const = 0;
  virtual int64_t peak_bytes() const = 0;
  virtual void reset_peak() = 0;
  /// What this rank has copied so far in collectives (counters.h), those through c10d included.
  virtual int64_t copied_bytes() const = 0;
  /// How long it has waited for peers so far in collectives and readings, likewise.
  virtual int64_t waited_ns() const = 0;

  /// Shows `read` every rank's `x`, for Group's functions of these names: `rows` is what each rank reads of
  /// them, or null where each reads all.
  virtual void fuse_with(const at::Tensor& x, const base::Split* rows, PeerBufferKernel read) = 0;
};

}  // namespace shardwise::comm
