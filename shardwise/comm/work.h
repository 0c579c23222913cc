// The handles of operations in flight: asynchronous collectives, collectives in chunks, receives.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace shardwise::comm {

/// An in-flight collective, such as Group::all_reduce_async_ starts. Until `wait`, other collectives of the
/// group may be called, the same ones on all ranks.
class Work {
 public:
  virtual ~Work() = default;
  /// Completes the collective, in place if it has an output. Collective; call it once. Errors:
  /// base::CommError, or the backend's; c10::ValueError if the call is refused before it begins, such as
  /// while another thread's call is in flight: it may then be repeated.
  virtual void wait() = 0;
};

/// A Work that `complete` completes. It releases what `complete` holds when the wait returns or fails; after
/// a refused one it keeps it.
class CallWork final : public Work {
 public:
  /// `complete` may be empty: nothing is left to do.
  explicit CallWork(std::function<void()> complete) : complete_(std::move(complete)) {}
  void wait() override {
    if (!complete_) return;
    try {
      complete_();
    } catch (const c10::ValueError&) {
      throw;  // refused before it began
    } catch (...) {
      complete_ = nullptr;
      throw;
    }
    complete_ = nullptr;
  }

 private:
  std::function<void()> complete_;
};

/// An in-flight all_gather along dim 0 that Group::all_gather_chunked started: each rank's rows can be read
/// as they arrive.
class ChunkedAllGather {
 public:
  /// The operations of the chunks, by rank.
  using Works = std::vector<std::unique_ptr<Work>>;

  /// `chunks[r]` completes the rows of rank r in `output`; null if they are complete. `rank` is this rank,
  /// whose rows are present from the start.
  ChunkedAllGather(at::Tensor output, int rank, Works chunks)
      : output_(std::move(output)), rank_(rank), chunks_(std::move(chunks)) {}

  /// Returns the gathered tensor [split.size(), ...]; wait_chunk(r) makes rank r's rows readable.
  const at::Tensor& output() const { return output_; }
  /// Waits until the rows of `rank` have arrived. The last call also waits until this rank's have been sent.
  /// Errors: c10::ValueError if the group has no such rank; those of Work::wait.
  void wait_chunk(int rank);

 private:
  void complete(int rank);

  at::Tensor output_;
  int rank_;
  Works chunks_;  // by rank; null once waited for
};

/// An in-flight reduce_scatter along dim 0 that Group::reduce_scatter_chunked started: the caller hands over
/// one rank's rows at a time. It is not a Work, because its operands are provided after the start. Until
/// `wait`, other collectives of the group may be called, the same ones on all ranks.
class ChunkedReduceScatter {
 public:
  virtual ~ChunkedReduceScatter() = default;
  /// Returns the rank whose rows the caller computes as the `i`-th chunk, 0 <= i < size.
  virtual int chunk_order(int i) const = 0;
  /// Reports that the rows of rank chunk_order(i) are final. Collective; call it once per i, ascending.
  /// Errors: c10::ValueError if i is not the next one; base::CommError.
  virtual void chunk_ready(int i) = 0;
  /// Sums the chunks over the ranks in rank order and writes this rank's rows into `out` [split.range(rank),
  /// ...], which must be contiguous. Collective; call it once. Errors: c10::ValueError, before anything is
  /// sent, if chunks are missing or `out` has another size, dtype, device or layout; base::CommError.
  virtual void wait(at::Tensor& out) = 0;
};

/// An in-flight receive that CollectiveBackend::receive posted. It may make progress only in `poll` and
/// `wait`, which the thread of the collectives calls, and while that thread waits for other messages. If it
/// is dropped before it is done, its tensor is unchanged. It may be dropped on any thread.
class PendingReceive {
 public:
  virtual ~PendingReceive() = default;
  /// Returns whether the message has been received. Never waits. Errors: those of `wait`, also when the
  /// group's timeout has passed since the first call.
  virtual bool poll() = 0;
  /// Waits until the message has been received. Errors: base::CommError after `limit` (if absent, the group's
  /// timeout), or if the receive cannot succeed.
  virtual void wait(std::optional<std::chrono::milliseconds> limit = std::nullopt) = 0;
  /// Returns the rank that sent the message; -1 until it has been received.
  virtual int sender() const = 0;
};

}  // namespace shardwise::comm
