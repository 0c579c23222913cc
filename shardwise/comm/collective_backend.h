// What c10d's calls come down to (c10d_backend.h): one set of collectives and messages.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <vector>

#include "shardwise/comm/reduction.h"

namespace c10d {
class Work;
}

namespace shardwise::comm {

inline constexpr int kAnySource = -1;

/// Arguments are checked, but for what ranks must agree about. CPU tensors of any strides; `pieces[r]`
/// belongs to rank r, and lists are read at the root only where there is one. Every rank ends with the same
/// bits. Errors: base::CommError, for sizes that differ too; c10::ValueError for a dtype that a reduction
/// does not take.
class CollectiveBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  virtual ~CollectiveBackend() = default;

  virtual std::string backend_name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Announcements so far, the same on all ranks: a long collective may make several.
  virtual uint64_t sequence() const = 0;
  /// Of a wait for another rank. Set from the thread of the collectives.
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  /// In place of the timeout in collectives, not in messages, until it is 0 again.
  virtual void limit_collectives(std::chrono::milliseconds limit) = 0;

  virtual void broadcast_(at::Tensor& x, int root) = 0;
  virtual void all_reduce_(at::Tensor& x, Reduce reduce) = 0;
  virtual void all_gather(Tensors& pieces, const at::Tensor& shard) = 0;
  virtual void reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) = 0;
  /// The same of equal parts of `x`, as it lies.
  virtual void reduce_scatter_even(at::Tensor& out, const at::Tensor& x, Reduce reduce) = 0;
  virtual void barrier() = 0;

  // Pieces of any sizes, as long as what one rank sends is what the other takes.
  virtual void scatter(at::Tensor& out, const Tensors& pieces, int root) = 0;
  virtual void gather(Tensors& pieces, const at::Tensor& shard, int root) = 0;
  virtual void all_to_all(Tensors& outs, const Tensors& pieces) = 0;
  /// Cuts and joins along dim 0; `out_rows` and `x_rows` hold the rows from and for each rank.
  virtual void all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& x,
                               const std::vector<int64_t>& x_rows) = 0;

  /// Returns when `x` may be written to again, which is before `to` receives it.
  virtual WorkPtr send(const at::Tensor& x, int to, int tag) = 0;
  /// Posts it; the Work's wait receives. `from` may be kAnySource.
  virtual WorkPtr receive(const at::Tensor& x, int from, int tag) = 0;

  /// Breaks the group: every peer's current or next wait fails naming `reason`.
  virtual void abort(const std::string& reason) = 0;
  /// Ends this rank's use of the group in good order.
  virtual void leave() = 0;
};

}  // namespace shardwise::comm
